"""Networks in FP32 that a server calibrated to 8-bit integers, by the ranges that it tells of.

Weights are signed, with a scale an output channel; values are unsigned, on the grid of their range.
A unit on integers reads values rounded to their grids and answers in FP32; values that are only
moved or joined share a grid. Other units read rounded what exists as integers alone.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from campaigns.exact.drawing import Drawn, rows
from campaigns.exact.precisions import DENORMAL, Grid
from campaigns.exact.steps import Array, Interval, Step, Sums

_SAMPLES = 32
_MOVED = ("concat", "max_pool")

Told = Mapping[str, Any]
"""Quantisation of a schedule, as the server shows it."""


def samples_of(drawn: Drawn, seed: int) -> Array:
    """Rows by which a network is calibrated."""
    clipped: Array = np.clip(rows(drawn, _SAMPLES, seed), -4, 4)
    return clipped


class Units:
    """Steps that run as one: a convolution, the sum behind it, and the function behind that."""

    def __init__(self, drawn: Drawn) -> None:
        self._units: dict[str, list[Step]] = {}  # by the first step's output
        self._first: dict[str, str] = {}  # of the unit that a step is in, by the step's output
        for step in drawn.steps:
            before = next((s for s in step.inputs if self._takes(s, step, drawn)), step.output)
            first = self._first[step.output] = self._first.get(before, step.output)
            self._units.setdefault(first, []).append(step)

    def _takes(self, value: str, step: Step, drawn: Drawn) -> bool:
        """Whether the unit that makes a value takes its reader in."""
        producer = next((s for s in drawn.steps if s.output == value), None)
        if producer is None or not drawn.may_be_taken_in(producer):
            return False
        return producer.feeds_sum or producer.kind in ("conv", "linear", "add", "function")

    def __iter__(self) -> Iterator[list[Step]]:
        return iter(self._units.values())

    def of(self, value: str) -> list[Step]:
        """Unit that makes a value, or in which it is made."""
        return self._units.get(self._first.get(value, ""), [])

    def is_inside(self, value: str, step: Step) -> bool:
        return self._first.get(value) == self._first[step.output]

    def operands(self, unit: list[Step]) -> list[str]:
        """Values that a unit reads."""
        return [v for step in unit for v in step.inputs if not self.is_inside(v, step)]

    def readers(self, value: str) -> list[list[Step]]:
        return [unit for unit in self if value in self.operands(unit)]


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Rounding of values to the grids of their readers."""

    drawn: Drawn  # weights on integers are the numbers that these stand for
    units: Units
    grids: Mapping[str, Grid]  # of values that a unit on integers reads
    on_integers: Collection[str]  # results of steps in such units

    @staticmethod
    def of(drawn: Drawn, told: Told) -> Calibrated:
        """A network, with what calibration found of it."""
        units, ranges = Units(drawn), dict(told["ranges"])
        for step in drawn.steps:
            if step.kind == "linear" and f"{step.output}:flat" in ranges:
                ranges.setdefault(step.inputs[0], ranges[f"{step.output}:flat"])
        chosen = _settled(units, ranges, {_step_of(name) for name in told["wide"]})
        shifts = {_step_of(name): shift for name, shift in told["shifts"].items()}
        steps = [
            _rounded(s, shifts.get(s.output)) if s.weight is not None and s.output in chosen else s
            for s in drawn.steps
        ]
        joint = _joint(units, chosen, ranges)
        read = {v for unit in units if unit[0].output in chosen for v in units.operands(unit)}
        grids = {value: _grid(*joint[value]) for value in read}
        return Calibrated(replace(drawn, steps=steps), units, grids, chosen)

    def entered(self, x: Array) -> Interval:
        """The numbers themselves."""
        return Interval.exact(x.astype(np.float64))

    def read(self, step: Step, value: str, numbers: Interval) -> Interval:
        """Rounded to the value's grid, where the reader or the maker is on integers."""
        grid = self.grids.get(value)
        if grid is None or self.units.is_inside(value, step):
            return numbers
        if step.output not in self.on_integers and value not in self.on_integers:
            return numbers
        return _widened(numbers, 2.0**-22).mapped(grid.round).mapped(grid.numbers)

    def stored(self, step: Step, result: Interval) -> Interval:
        """FP32."""
        widened = _widened(result, 2.0**-23)
        return Interval(widened.low - DENORMAL, widened.high + DENORMAL)

    def meant(self, value: str, stored: Interval) -> Interval:
        return stored

    def sums(self, step: Step) -> Sums:
        """Of integers, in units on them; zero points are made up for."""
        if step.output not in self.on_integers:
            return Sums()
        grid = self.grids.get(step.inputs[0])
        return Sums(8, 0.0 if grid is None else float(grid.scale) * 256)


def _step_of(name: str) -> str:
    """Result of the step that a unit's name begins with."""
    match = re.match(r"v\d+", name)
    assert match is not None, name
    return match[0]


def _settled(units: Units, ranges: Told, wide: Collection[str]) -> set[str]:
    """Results in units on integers: those with weights, and what integers come to and go from."""
    candidates = [unit for unit in units if _is_candidate(units, unit, ranges, wide)]
    while True:
        chosen = {step.output for unit in candidates for step in unit}
        left = [unit for unit in candidates if _stays(units, unit, chosen)]
        if len(left) == len(candidates):
            return chosen
        candidates = left


def _is_candidate(units: Units, unit: list[Step], ranges: Told, wide: Collection[str]) -> bool:
    operands = units.operands(unit)
    if any(value not in ranges for value in operands):
        return False
    root = unit[0]
    if root.weight is not None:
        return root.output not in wide
    if root.kind == "function" or root.output not in ranges:
        return False
    counted = root.window.counts_padding and any(root.window.padding)
    return not (root.kind == "avg_pool" and counted and ranges[operands[0]][0] < 0)


def _stays(units: Units, unit: list[Step], chosen: Collection[str]) -> bool:
    """Whether integers come to a unit without weights, and are read of it."""
    if unit[0].weight is not None:
        return True
    comes = any(value in chosen for value in units.operands(unit))
    return comes and any(r[0].output in chosen for r in units.readers(unit[-1].output))


def _joint(units: Units, chosen: Collection[str], ranges: Told) -> dict[str, tuple[float, float]]:
    """Ranges of values; those that are moved or joined on integers have that of all of them."""
    groups = [{value} for value in ranges]
    for unit in units:
        if unit[0].output in chosen and unit[0].kind in _MOVED:
            same = {*units.operands(unit), unit[0].output}
            met = [group for group in groups if group & same]
            groups = [g for g in groups if not g & same] + [same.union(*met)]
    joined: dict[str, tuple[float, float]] = {}
    for group in groups:
        low, high = zip(*(ranges[value] for value in group), strict=True)
        joined |= dict.fromkeys(group, (min(low), max(high)))
    return joined


def _grid(low: float, high: float) -> Grid:
    """Unsigned bytes over a range that holds zero."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = np.float32((high - low) / 255)
    if scale == 0:
        return Grid(np.float32(1), 0, np.uint8)
    return Grid(scale, int(np.clip(np.rint(-low / float(scale)), 0, 255)), np.uint8)


def _rounded(step: Step, shift: Told | None) -> Step:
    """A step with the weights that integers stand for, and its bias less what rounding adds."""
    assert step.weight is not None
    weight = step.weight
    scales = abs(weight.reshape(len(weight), -1)).max(1) / np.float32(127)
    scales = np.where(scales > 0, scales, np.float32(1)).reshape(-1, *[1] * (weight.ndim - 1))
    integers = np.clip(np.rint(weight / scales), -127, 127)
    bias = None if step.bias is None else step.bias.astype(np.float64)
    if shift is not None:
        steps = np.frombuffer(base64.b64decode(shift["steps"]), np.int8).astype(np.float64)
        bias = (0.0 if bias is None else bias) - shift["step"] * steps
    return replace(step, weight=integers.astype(np.float64) * np.float64(scales), bias=bias)


def _widened(numbers: Interval, part: float) -> Interval:
    """Numbers with an error that is a part of them."""
    return Interval.around(numbers.middle, numbers.radius + abs(numbers.middle) * part)
