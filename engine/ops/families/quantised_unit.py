"""Schedule unit on quantised integers: dequantise, operator, quantise, as one unit.

    x ─> DQ ─> conv ─> relu ─> Q ─> DQ ─┐                  one unit: the convolution of x, plus s
                              s ─> DQ ─> add ─> relu ─> Q

What it computes is what the parts compute one after the other, in FP32. A device with kernels on
integers computes the same from the integers (engine/cpu/kernels/integers). The passes of
engine/passes/quantised make such units in static graphs; no artefact has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import Tensor

from braid.core.graph import Literal, Operator
from braid.engine.ops.families.quantised import dequantise, quantise
from braid.engine.ops.kinds import WITH_SUM, epilogue_steps, op, operator

KIND = "braid.quantised_unit"

QUANTISE, DEQUANTISE = "braid.quantise", "braid.dequantise"

IDENTITY = "braid.identity"  # operator of a unit that only brings integers to another scale

_Value = TypeVar("_Value", str, "Tensor | None")


@dataclass(frozen=True, slots=True)
class Grid(Generic[_Value]):
    """Scale and zero point of integers, by name or as tensors."""

    scale: _Value
    zero: _Value


@dataclass(frozen=True, slots=True)
class Parts(Generic[_Value]):
    """Operands of a unit by their roles: names in a graph, tensors in a run."""

    values: tuple[_Value, ...]  # of the operator
    grids: tuple[Grid[_Value] | None, ...]  # of each value; None for one that is no integer
    middle: Grid[_Value] | None  # to which the result before the sum is rounded
    result: Grid[_Value] | None  # None: the result is FP32


def flat(parts: Parts[str]) -> tuple[str, ...]:
    """Names of operands in the order of a unit's inputs."""
    grids = [grid or Grid("", "") for grid in parts.grids]
    grids += [grid for grid in (parts.middle, parts.result) if grid is not None]
    return (*parts.values, *(part for grid in grids for part in (grid.scale, grid.zero)))


def split(
    inputs: Sequence[_Value], operands: int, *, middle: bool, quantised: bool
) -> Parts[_Value]:
    """Operands by their roles; the inverse of ``flat``."""
    rest = inputs[operands:]
    pairs = [Grid(*pair) for pair in zip(rest[::2], rest[1::2], strict=True)]
    grids = tuple(None if g.scale is None or g.scale == "" else g for g in pairs[:operands])
    left = pairs[operands:]
    assert len(left) == middle + quantised, "a unit has a grid for each rounding"
    between = left[0] if middle else None
    return Parts(tuple(inputs[:operands]), grids, between, left[-1] if quantised else None)


@dataclass(frozen=True, slots=True)
class QuantisedUnit:
    """A unit in a graph, read."""

    unit: str  # kind of the operator; with a sum if there is one
    parts: Parts[str]
    before: list[Literal]  # pointwise steps before the rounding in the middle ...
    after: list[Literal]  # ... and at the end; epilogue steps as in engine/ops/kinds.py
    attributes: Mapping[str, Literal]  # of the operator

    @staticmethod
    def read(operator: Operator) -> QuantisedUnit:
        given = dict(operator.attributes)
        unit, operands = given.pop("unit"), given.pop("operands")
        middle, quantised = given.pop("middle"), given.pop("quantised")
        before, after = given.pop("before"), given.pop("after")
        assert isinstance(unit, str)
        assert isinstance(operands, int)
        assert isinstance(before, list)
        assert isinstance(after, list)
        parts = split(operator.inputs, operands, middle=bool(middle), quantised=bool(quantised))
        return QuantisedUnit(unit, parts, before, after, given)

    def operator(self, name: str, outputs: Sequence[str]) -> Operator:
        parts = self.parts
        layout: dict[str, Literal] = {
            "unit": self.unit,
            "operands": len(parts.values),
            "middle": parts.middle is not None,
            "quantised": parts.result is not None,
            "before": self.before,
            "after": self.after,
        }
        return Operator(name, KIND, flat(parts), tuple(outputs), {**layout, **self.attributes})


def by_grid(kind: str, name: str, operands: Sequence[str], result: str, axis: int = 1) -> Operator:
    """A quantisation or dequantisation; several scales lie along ``axis``."""
    attributes: dict[str, Literal] = {"axis": axis, "block": 0, "dtype": None}
    return Operator(name, kind, tuple(operands), (result,), attributes)


def _steps(x: Tensor, literal: Literal) -> Tensor:
    for definition, attributes in epilogue_steps(literal):
        result = definition.bound(attributes)(x)
        assert isinstance(result, Tensor), "a step is unary"
        x = result
    return x


def _rounded(x: Tensor, grid: Grid[Tensor | None]) -> Tensor:
    assert grid.scale is not None
    return quantise(x, grid.scale, grid.zero)


def _wide(x: Tensor | None, grid: Grid[Tensor | None] | None) -> Tensor | None:
    if x is None or grid is None or grid.scale is None:
        return x
    return dequantise(x, grid.scale, grid.zero, axis=0)


@operator(KIND)
def quantised_unit(
    *inputs: Tensor | None,
    unit: str,
    operands: int,
    middle: bool,
    quantised: bool,
    before: Literal,
    after: Literal,
    **attributes: Any,
) -> Tensor:
    """Operator ``unit`` on dequantised operands (``Parts``), its result quantised if asked.

    Several scales of one operand lie along its axis 0. With ``middle`` the result is rounded
    before the sum, if there is one, and ``after``; ``before`` and ``after`` are epilogue steps.
    """
    parts = split(inputs, operands, middle=middle, quantised=quantised)
    wide = [_wide(x, grid) for x, grid in zip(parts.values, parts.grids, strict=True)]
    summand = None
    if middle and unit in WITH_SUM.values():
        *wide, summand = wide
        unit = next(plain for plain, summed in WITH_SUM.items() if summed == unit)
    y = op(unit).bound(attributes)(*wide)
    assert isinstance(y, Tensor), "a unit has one result"
    if parts.middle is not None:
        y = _rounded(_steps(y, before), parts.middle)
        widened = _wide(y, parts.middle)
        assert widened is not None
        y = widened if summand is None else widened + summand
    y = _steps(y, after)
    return y if parts.result is None else _rounded(y, parts.result)
