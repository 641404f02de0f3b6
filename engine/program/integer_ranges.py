"""Ranges of values in a model of OpenVINO, followed from its inputs to where it would err.

    inputs and constants ──transfer by kind──> range of each value ──outside?──> narrower inputs

A range is the least and the greatest number that an element can be. Floats are followed as far as
integers are made of them; of others nothing is known. ``widest_inputs`` narrows the inputs until
everything fits, and then widens each as far as it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, prod, trunc
from typing import Any

from braid.core.errors import PreconditionFailed

Range = tuple[float, float]  # least and greatest value; integers are exact

ALL: Range = (-inf, inf)
BOOLEAN: Range = (0, 1)

Transfer = Callable[[Sequence[Range]], Sequence[Range]]  # of operands -> of each output, or of all


@dataclass(frozen=True, slots=True)
class Step:
    """One operator: how ranges pass through it, and what its values must lie in."""

    kind: str
    operands: tuple[str, ...]
    outputs: tuple[str, ...]
    transfer: Transfer
    data: tuple[int, ...]  # operands whose elements, or numbers made of them, are the outputs
    limits: Mapping[str, Range]  # of values in OpenVINO's types, operands and outputs
    indices: Mapping[str, Range]  # of operands that ONNX refuses elsewhere, too


@dataclass(frozen=True, slots=True)
class _Outside:
    """A value that may lie outside its limit, and the inputs that it is made of."""

    step: Step
    value: str
    bounds: Range
    limit: Range
    sources: frozenset[str]

    @property
    def text(self) -> str:
        worst = self.bounds[1] if self.bounds[1] > self.limit[1] else self.bounds[0]
        made_of = f", made of input {' and '.join(map(repr, sorted(self.sources)))}"
        return (
            f"OpenVINO would compute {self.step.kind} on other integers, as one may be "
            f"{worst}{made_of if self.sources else ''}; it takes {self.limit[0]} to {self.limit[1]}"
        )


def widest_inputs(
    steps: Sequence[Step], inputs: Mapping[str, Range], returned: frozenset[str]
) -> dict[str, Range]:
    """Ranges of the inputs within which every value lies in its limits.

    An input that serves as an index is held to what ONNX takes of it. Others, as masks and lengths
    are, may be narrowed to 0 and 1; what is left of them is to be checked in each request. Of
    values ``returned`` as integers callers may want any number.

    Raises ``PreconditionFailed``, naming an operator and a value, if there are none.
    """
    ranges, indices = dict(inputs), set[str]()
    while (outside := _outside(steps, ranges, indices_only=True)) is not None:
        indices |= outside.sources
        _narrow(ranges, outside, outside.sources)
    while (outside := _outside(steps, ranges)) is not None:
        _narrow(
            ranges, outside, frozenset() if outside.value in returned else outside.sources - indices
        )
    for name, widest in inputs.items():
        for end in (1, 0):
            _widen(steps, ranges, name, end, widest[end])
    return ranges


def _narrow(ranges: dict[str, Range], outside: _Outside, inputs: frozenset[str]) -> None:
    """Narrow those that hold more than 0 and 1; ``PreconditionFailed`` if none does."""
    wide = [name for name in inputs if ranges[name][0] < 0 or ranges[name][1] > 1]
    if not wide:
        raise PreconditionFailed(outside.text)
    ranges.update({name: _narrowed(ranges[name], outside.limit) for name in wide})


def _narrowed(bounds: Range, limit: Range) -> Range:
    """A smaller range: the part within the limit, else the part from 0 on, else half of it."""
    within = max(bounds[0], limit[0]), min(bounds[1], limit[1])
    if within != bounds and within[0] <= within[1]:
        return within
    if bounds[0] < 0:
        return 0, max(bounds[1], 0)
    return bounds[0], max(1, int(bounds[1]) // 2)


def _widen(
    steps: Sequence[Step], ranges: dict[str, Range], name: str, end: int, farthest: float
) -> None:
    """Move one end of an input's range as far towards ``farthest`` as everything still fits."""
    fits, fails = int(ranges[name][end]), int(farthest)
    if fits == fails:
        return
    fails += 1 if end else -1
    while abs(fails - fits) > 1:
        middle = (fits + fails) // 2
        tried = (ranges[name][0], middle) if end else (middle, ranges[name][1])
        if _outside(steps, {**ranges, name: tried}) is None:
            fits, ranges[name] = middle, tried
        else:
            fails = middle


def _outside(
    steps: Sequence[Step], inputs: Mapping[str, Range], *, indices_only: bool = False
) -> _Outside | None:
    """The first value that may lie outside its limits; None if none may."""
    ranges = dict(inputs)
    sources = {name: frozenset({name}) for name in inputs}
    none = frozenset[str]()
    for step in steps:
        operands = [ranges.get(value, ALL) for value in step.operands]
        results = step.transfer(operands)
        if len(results) == 1:
            results = [results[0]] * len(step.outputs)
        ranges.update(zip(step.outputs, results, strict=True))
        made_of = none.union(*(sources.get(step.operands[i], none) for i in step.data))
        for value, bounds in zip(step.outputs, results, strict=True):
            sources[value] = none if bounds in (ALL, BOOLEAN) else made_of
        for limits in (step.indices, {} if indices_only else step.limits):
            for value, limit in limits.items():
                bounds = ranges.get(value, ALL)
                if bounds[0] < limit[0] or bounds[1] > limit[1]:
                    return _Outside(step, value, bounds, limit, sources.get(value, none))
    return None


def hull(ranges: Sequence[Range]) -> Range:
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _corners(function: Callable[[float, float], float]) -> Callable[[Range, Range], Range]:
    """The range of a function whose extremes are at extremes of its arguments."""

    def apply(a: Range, b: Range) -> Range:
        values = [function(x, y) for x in a for y in b]
        if any(value != value for value in values):  # infinity less infinity, zero times infinity
            return ALL
        return min(values), max(values)

    return apply


BINARY: Mapping[str, Callable[[Range, Range], Range]] = {
    "Add": _corners(lambda x, y: x + y),
    "Subtract": _corners(lambda x, y: x - y),
    "Multiply": _corners(lambda x, y: x * y),
    "Maximum": _corners(max),
    "Minimum": _corners(min),
}


def _absolute(bounds: Range) -> Range:
    ends = [abs(end) for end in bounds]
    return (0 if bounds[0] <= 0 <= bounds[1] else min(ends)), max(ends)


def _rounded(round_: Callable[[float], float]) -> Callable[[Range], Range]:
    def apply(bounds: Range) -> Range:
        low, high = (end if abs(end) == inf else round_(end) for end in bounds)
        return low, high

    return apply


UNARY: Mapping[str, Callable[[Range], Range]] = {
    "Abs": _absolute,
    "Negative": lambda bounds: (-bounds[1], -bounds[0]),
    "Relu": lambda bounds: (max(bounds[0], 0), max(bounds[1], 0)),
    "Sign": lambda _: (-1, 1),
    "Floor": _rounded(floor),
    "Ceiling": _rounded(ceil),
    "Round": lambda bounds: (_rounded(floor)(bounds)[0], _rounded(ceil)(bounds)[1]),
    "Sigmoid": lambda _: (0, 1),
    "Softmax": lambda _: (0, 1),
    "Tanh": lambda _: (-1, 1),
}

truncated = _rounded(trunc)


def quotients(dividend: Range, divisor: Range) -> Range:
    """Range of whole quotients, whichever way they are rounded; the divisors do not hold 0."""
    least = 1 if divisor[0] < 0 < divisor[1] else min(map(abs, divisor))
    ends = [end // least for end in dividend] + [-(-end // least) for end in dividend]
    both = [-end for end in ends] if divisor[0] < 0 else []
    return min(0, *ends, *both), max(0, *ends, *both)


def summed(count: int, least_count: int = 1) -> Callable[[Range], Range]:
    """Range of sums of ``least_count`` to ``count`` numbers."""

    def apply(bounds: Range) -> Range:
        ends = [end * n if n else 0 for end in bounds for n in (least_count, count)]
        return min(ends), max(ends)

    return apply


def reduced_count(shape: Sequence[int], axes: Sequence[int]) -> int:
    return prod(shape[axis] for axis in {axis % len(shape) for axis in axes})


def of_operand(apply: Callable[[Range], Range]) -> Transfer:
    return lambda ranges: [apply(ranges[0])]


def constant(bounds: Range, *more: Range) -> Transfer:
    results = [bounds, *more]
    return lambda _: results


def content_range(data: Any) -> Range:
    return (data.min().item(), data.max().item()) if data.size else (0, 0)
