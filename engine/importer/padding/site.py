"""One operator as its rule sees it, and what rules share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from braid.core.graph import Operator
from braid.engine.importer.padding.facts import (
    Fact,
    NotShown,
    Place,
    regions,
)
from braid.engine.importer.padding.fills import (
    FINITE,
    FIRM,
    WILD,
    Fill,
    elementwise,
)

Places = Mapping[int, Place]


@dataclass(slots=True)
class Site:
    """One operator at the padded extent, with what is known of its operands."""

    operator: Operator
    before: Operator  # the same at the shorter extent
    facts: Sequence[Fact | None]
    shapes: Sequence[tuple[int, ...]]
    shorts: Sequence[tuple[int, ...]]  # the same at the shorter extent
    results: Sequence[tuple[int, ...]]  # shapes of the results
    short_results: Sequence[tuple[int, ...]]
    axes: Sequence[tuple[int, ...]]  # of the results
    dtypes: Sequence[torch.dtype | None]
    weakest: float = field(default=FIRM)  # of the numbers that hide

    @property
    def attributes(self) -> Mapping[str, Any]:
        return self.operator.attributes

    def operand(self, index: int) -> Fact:
        fact = self.facts[index]
        assert fact is not None
        return fact

    def has(self, index: int) -> bool:
        return index < len(self.facts) and self.facts[index] is not None

    def refuse(self, why: str) -> NotShown:
        return NotShown(f"operator {self.operator.name!r} ({self.operator.kind}) {why}")

    def hides(self, outside: Fill, first: Fill) -> bool:
        """Whether numbers outside do nothing beside the first one where the largest decide."""
        is_alive = first.is_finite
        if outside.is_hidden and is_alive:
            self.weakest = max(self.weakest, outside.value)
            return True
        return False


Rule = Callable[[Site], list[Fact]]


def result(site: Site, fill_at: Callable[[Places], Fill], index: int = 0) -> Fact:
    axes = site.axes[index]
    return Fact(axes, {tuple(p.values()): fill_at(p) for p in regions(axes)})


def smooth(*fills: Fill) -> Fill:
    return FINITE if all(fill.is_finite for fill in fills) else WILD


def by_elements(site: Site) -> list[Fact]:
    """Elementwise with broadcasting: dimensions are counted from the last one."""
    rank = max(map(len, site.shapes), default=0)

    def fill_at(places: Places) -> Fill:
        fills = []
        for fact, shape in zip(site.facts, site.shapes, strict=True):
            shift = rank - len(shape)
            at = {axis - shift: place for axis, place in places.items()}
            fills.append(None if fact is None else fact.at(at))
        return elementwise(_alone(site.operator), fills, site.dtypes)

    wanted = {
        axis + rank - len(shape)
        for fact, shape in zip(site.facts, site.shapes, strict=True)
        if fact is not None
        for axis in fact.axes
    }
    if wanted != set(site.axes[0]):
        raise site.refuse("makes another shape of the axis")
    blocks = {
        axis: {
            fact.blocks.get(axis - rank + len(shape), 1)
            for fact, shape in zip(site.facts, site.shapes, strict=True)
            if fact is not None and axis - rank + len(shape) in fact.axes
        }
        for axis in site.axes[0]
    }
    if any(len(counts) > 1 for counts in blocks.values()):
        raise site.refuse("joins the axis with another one")
    joined = {axis: max(counts) for axis, counts in blocks.items() if max(counts) > 1}
    return [replace(result(site, fill_at), blocks=joined)]


def _alone(operator: Operator) -> Operator:
    """The operator without its epilogue, and without host operands."""
    attributes = {key: value for key, value in operator.attributes.items() if key != "epilogue"}
    return Operator(operator.name, operator.kind, operator.inputs, operator.outputs, attributes)


def normal(axis: int, rank: int) -> int:
    return axis % rank if rank else 0


def untouched(site: Site, axis: int) -> None:
    """Refuse an operator that mixes positions along ``axis``."""
    if axis in site.operand(0).axes:
        raise site.refuse("mixes positions along the axis")
