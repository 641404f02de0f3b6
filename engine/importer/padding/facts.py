"""What is known of a value of a padded model, and which regions it has.

attention scores [batch, heads, queries, keys], both of the padded axis

            keys   FIRST  IN           OUT
queries FIRST      |      |            |
        IN         |  the request's    |  must be hidden
        OUT        |   nobody looks at these
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import Tensor

from braid.engine.importer.padding.fills import Fill, fill_of, join


class Place(Enum):
    """Part of an axis. IN takes FIRST in: it is all that a request brought."""

    FIRST = 0  # the first position
    IN = 1  # positions of the request
    OUT = 2  # positions of the padding


FIRST, IN, OUT = Place.FIRST, Place.IN, Place.OUT

Region = tuple[Place, ...]  # one place for each axis of a fact


class NotShown(Exception):
    """Nothing shows that padding is exact; the message names the operator and says why."""


class DoesNotRun(NotShown):
    """The model does not run at these extents; it may at others."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A value whose elements at the positions of the request are those of the request alone.

    ``axes`` are its dimensions that follow the padded axis; ``fills`` has all their regions.
    """

    axes: tuple[int, ...]
    fills: Mapping[Region, Fill]
    content: Tensor | None = None  # where it is constant: at the padded extent
    follows: bool = False  # numbers made of extents: not the same without padding
    blocks: Mapping[int, int] = field(default_factory=dict)
    # of a dimension that a view joined with outer ones: how often the axis lies in it

    def at(self, places: Mapping[int, Place]) -> Fill:
        """Fill of a region, given the place along each of its dimensions (default: IN)."""
        return self.fills[tuple(places.get(axis, IN) for axis in self.axes)]

    @property
    def all(self) -> Fill:
        return join(*self.fills.values())


def regions(axes: Sequence[int]) -> Iterator[dict[int, Place]]:
    """Places along each of the axes, in all combinations."""
    for region in itertools.product(Place, repeat=len(axes)):
        yield dict(zip(axes, region, strict=True))


def is_real(places: Mapping[int, Place]) -> bool:
    """Whether the region belongs to the request."""
    return OUT not in places.values()


def constant(content: Tensor, axes: tuple[int, ...], *, follows: bool = False) -> Fact:
    """The fact of a constant; its fills hold whatever the request's length is."""
    fills = {tuple(places.values()): _fill(content, places) for places in regions(axes)}
    return Fact(axes, fills, content, follows)


def _fill(content: Tensor, places: Mapping[int, Place]) -> Fill:
    """Elements that may lie in a region, for any length from one up."""
    inner = [axis for axis, place in places.items() if place is IN]
    outer = [axis for axis, place in places.items() if place is OUT]
    for axis, place in places.items():
        if place is FIRST:
            content = content.narrow(axis, 0, 1)
        elif place is OUT:
            content = content.narrow(axis, 1, content.shape[axis] - 1)
    if len(inner) == 1 and len(outer) == 1:  # some length lies between the two positions
        moved = content.movedim((inner[0], outer[0]), (-2, -1))
        rows, columns = moved.shape[-2:]
        before = torch.arange(rows).unsqueeze(1) < torch.arange(1, columns + 1)
        return fill_of(moved[..., before])
    return fill_of(content)
