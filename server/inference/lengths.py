"""Requests of different lengths in one batch, along a padded axis (``braid.core.padding``).

    request [1, 53] ──┐
    request [1, 61] ──┼─ lane of lengths up to 64 ──> batch [3, 61] ──> outputs, each cut
    request [1, 58] ──┘

Lengths that lie near each other share a lane, and with it what its batches are seen to take. A
batch is as long as the longest request in it, so one that runs alone is not padded.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from braid.core.inputs import Content, GivenTensor, ShapeClass
from braid.core.padding import PaddedAxis, at_length, length_of, takes

LEAST_STEP = 8
"""Lengths of a lane differ by less than this, or than a quarter of the power of two below them."""

MAX_LANES = 512
"""Shape classes whose lane is remembered."""


class Request(Protocol):
    """Request as far as its lane depends on it."""

    @property
    def shape_class(self) -> ShapeClass: ...

    @property
    def rows(self) -> int: ...

    @property
    def inputs(self) -> Mapping[str, Content]: ...

    @property
    def is_empty(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Near:
    """Lane of all classes that are no longer than this one, and nearly as long."""

    longest: ShapeClass


@dataclass(frozen=True, slots=True)
class ManyRows(Near):
    """Lane of requests of one class that have more rows than scheduled batches take."""


@dataclass(frozen=True, slots=True)
class NoRows(Near):
    """Lane of requests of one class without rows, which share no batch with others."""


def longest_near(length: int) -> int:
    """Return the greatest length that shares a lane with ``length``, which is one at least."""
    step = max(LEAST_STEP, 1 << max(0, length.bit_length() - 3))
    return -(-length // step) * step


class Lengths:
    """Lanes of one model by its padded axis: the first, if there are several."""

    def __init__(self, padding: Sequence[PaddedAxis], scheduled: ShapeClass) -> None:
        """``scheduled``: the main class that has schedules; each such keeps a lane of its own."""
        self.axis = next((axis for axis in padding if axis.exact), None)
        self._scheduled = {scheduled}
        self._near: dict[ShapeClass, Near | None] = {}  # None: it is not padded

    def keep_apart(self, scheduled: Collection[ShapeClass]) -> None:
        """Take the classes whose schedules serve, beside the main one."""
        self._scheduled = {*scheduled}
        self._near.clear()

    def lane_of(self, request: Request) -> Hashable:
        """Return what requests must have in common to share batches."""
        shape_class = request.shape_class
        if shape_class not in self._near:
            if len(self._near) >= MAX_LANES:
                self._near.clear()
            self._near[shape_class] = self._lane(shape_class)
        near = self._near[shape_class]
        is_padded = near is not None and self.axis and can_be_padded(request, self.axis)
        return near if is_padded else shape_class

    def _lane(self, shape_class: ShapeClass) -> Near | None:
        if shape_class in self._scheduled or self.axis is None:
            return None
        length = length_of(shape_class, self.axis)
        if not 0 < length <= self.axis.up_to:
            return None
        return Near(at_length(shape_class, self.axis, longest_near(length)))

    def joined(self, classes: Collection[ShapeClass]) -> ShapeClass:
        """Return the class of a batch of requests of one lane, as long as the longest of them."""
        any_of = next(iter(classes))
        if self.axis is None:
            return any_of
        longest = max(length_of(one, self.axis) for one in classes)
        return at_length(any_of, self.axis, longest)


def can_be_padded(request: Request, axis: PaddedAxis) -> bool:
    given = [
        GivenTensor(name, spec.dtype, (request.rows, *map(int, spec.shape[1:])), data)
        for name, spec in request.shape_class.inputs
        if isinstance(data := request.inputs[name], bytes | memoryview)
    ]
    is_given = not request.is_empty and len(given) == len(request.inputs)
    return is_given and takes(given, axis)


def elements_of(lane: Hashable) -> int:
    """Elements of one row of all inputs, of a class or of the longest near one; at least one."""
    shape_class = lane.longest if isinstance(lane, Near) else lane
    assert isinstance(shape_class, ShapeClass)
    return max(1, sum(math.prod(map(int, spec.shape)) for _, spec in shape_class.inputs))
