"""What each precision stores of a number, as intervals of what may be stored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from campaigns.exact.drawing import Drawn, rows
from campaigns.exact.steps import Array, Interval, Step, Sums, evaluated

DENORMAL = 2.0**-126
"""Numbers below this may become zero."""

ROUNDED = 2.0**-8
"""Twice the largest error of rounding to BF16, as a part of the number."""


class Precision(Protocol):
    """Rounding behind each step of one network."""

    @property
    def drawn(self) -> Drawn:
        """The network with the weights that it computes with."""
        ...

    def entered(self, x: Array) -> Interval:
        """What the network sees of its input."""
        ...

    def read(self, step: Step, value: str, numbers: Interval) -> Interval:
        """What a step sees of a value."""
        ...

    def stored(self, step: Step, result: Interval) -> Interval:
        """What is stored of a step's result: integers, or the numbers themselves."""
        ...

    def meant(self, value: str, stored: Interval) -> Interval:
        """The numbers that stored ones stand for."""
        ...

    def sums(self, step: Step) -> Sums:
        """How the step sums products."""
        ...


@dataclass(frozen=True, slots=True)
class Floats:
    """FP32, or BF16 between all steps; engines round to BF16 where they like, or not."""

    drawn: Drawn
    narrow: bool
    by_engines: bool = False

    @staticmethod
    def of(drawn: Drawn, *, narrow: bool) -> Floats:
        """Round the weights, too."""
        if narrow:
            steps = [
                replace(step, weight=_bf16_or_none(step.weight), bias=_bf16_or_none(step.bias))
                for step in drawn.steps
            ]
            drawn = replace(drawn, steps=steps)
        return Floats(drawn, narrow)

    def entered(self, x: Array) -> Interval:
        """The rows, rounded."""
        interval = Interval.exact(bf16(x) if self.narrow else x)
        return Interval.around(
            interval.middle, np.where(abs(interval.middle) < DENORMAL, DENORMAL, 0)
        )

    def read(self, step: Step, value: str, numbers: Interval) -> Interval:
        """The numbers; of engines, their products with weights, each rounded twice at most."""
        return _wider(numbers, 4 * ROUNDED) if self.by_engines else numbers

    def stored(self, step: Step, result: Interval) -> Interval:
        """Rounded once; before a sum, perhaps not."""
        if self.by_engines:
            bias = 0.0 if step.bias is None else ROUNDED * np.abs(step.bias).max()
            wide = _wider(result, ROUNDED)
            return Interval(wide.low - bias - DENORMAL, wide.high + bias + DENORMAL)
        if not self.narrow:
            return Interval(result.low - DENORMAL, result.high + DENORMAL)
        low, high = bf16(result.low - DENORMAL), bf16(result.high + DENORMAL)
        if self.drawn.may_be_taken_in(step):
            low, high = np.minimum(low, result.low), np.maximum(high, result.high)
        return Interval(low, high)

    def meant(self, value: str, stored: Interval) -> Interval:
        return stored

    def sums(self, step: Step) -> Sums:
        """In FP32, of unrounded numbers perhaps by Winograd's method, in tiles of six pixels."""
        return Sums(near=0 if self.narrow else 5)


def _wider(numbers: Interval, part: float) -> Interval:
    ends = np.maximum(abs(numbers.low), abs(numbers.high))
    return Interval.around(numbers.middle, numbers.radius + part * ends)


def bf16(x: Array) -> Array:
    """The nearest numbers that BF16 has, ties to even."""
    narrow = torch.from_numpy(np.asarray(x, np.float32)).bfloat16()
    rounded: Array = narrow.double().numpy()
    return rounded


def _bf16_or_none(x: Array | None) -> Array | None:
    return None if x is None else bf16(x).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Grid:
    """Integers of a value: number = scale * (integer - zero)."""

    scale: np.float32
    zero: int
    dtype: type[np.uint8] | type[np.int8]

    def round(self, x: Array) -> Array:
        """Integers of numbers; NaN becomes the least one."""
        limits = np.iinfo(self.dtype)
        steps = np.rint(x / np.float64(self.scale)) + self.zero
        clipped: Array = np.clip(np.nan_to_num(steps, nan=-1e9), limits.min, limits.max)
        return clipped

    def numbers(self, integers: Array) -> Array:
        values: Array = (integers.astype(np.float64) - self.zero) * np.float64(self.scale)
        return values


@dataclass(frozen=True, slots=True)
class Weights:
    """Integers of a step's weights and bias."""

    integers: Array  # signed, around zero
    scales: Array  # FP32, one or one an output channel
    bias: Array | None  # INT32, by the scales of data and weights


@dataclass(frozen=True, slots=True)
class Integers:
    """8 bits with a grid for each value, by the range that it has on usual rows."""

    drawn: Drawn
    grids: dict[str, Grid]
    weights: dict[str, Weights]  # by the step's output
    on_integers: bool  # whether sums are of integers; else in FP32

    @staticmethod
    def of(drawn: Drawn, seed: int, *, on_integers: bool, relu_is_least: bool) -> Integers:
        """Draw grids, then round weights to the numbers that integers stand for.

        ``relu_is_least``: the least integer stands for zero behind each ReLU.
        """
        random = np.random.default_rng(seed)
        dtype = np.int8 if random.integers(3) == 0 else np.uint8
        usual = rows(drawn, 32, seed)
        values = {"x": Interval.exact(np.clip(usual, -4, 4))}
        grids = {"x": _grid(values["x"].low, dtype, random)}
        weights, steps = {}, []
        for step in drawn.steps:
            if step.weight is not None:
                data = grids[step.inputs[0]].scale
                weights[step.output] = rounded = _rounded(step, data, random)
                factor = rounded.scales.reshape(-1, *[1] * (step.weight.ndim - 1))
                bias = rounded.bias
                if bias is not None:
                    bias = bias * np.float64(data) * rounded.scales
                step = replace(step, weight=rounded.integers * np.float64(factor), bias=bias)
            steps.append(step)
            values[step.output] = result = evaluated(step, [values[n] for n in step.inputs])
            if step.kind == "max_pool":
                grids[step.output] = grids[step.inputs[0]]
            else:
                is_positive = step.activation == "Relu" and relu_is_least
                grids[step.output] = _grid(result.low, dtype, random, is_positive=is_positive)
        return Integers(replace(drawn, steps=steps), grids, weights, on_integers)

    def entered(self, x: Array) -> Interval:
        """The integers of the rows, as numbers."""
        grid, slack = self.grids["x"], abs(x.astype(np.float64)) * 2.0**-22
        around = Interval.around(x.astype(np.float64), slack)
        return around.mapped(grid.round).mapped(grid.numbers)

    def read(self, step: Step, value: str, numbers: Interval) -> Interval:
        return numbers

    def stored(self, step: Step, result: Interval) -> Interval:
        """Integers; a number between two may become either."""
        around = Interval.around(result.middle, result.radius + abs(result.middle) * 2.0**-22)
        return around.mapped(self.grids[step.output].round)

    def meant(self, value: str, stored: Interval) -> Interval:
        return stored.mapped(self.grids[value].numbers)

    def sums(self, step: Step) -> Sums:
        """Of integers, if the CPU has instructions for it; zero points are made up for."""
        grid = self.grids[step.inputs[0]]
        offset = float(grid.scale) * 256
        return Sums(8 if self.on_integers else 0, offset)


def _grid(
    x: Array, dtype: type[np.uint8] | type[np.int8], random: np.random.Generator,
    *, is_positive: bool = False,
) -> Grid:  # fmt: skip
    """Grid of the numbers' range, or of a part of it; some have powers of two, so ties."""
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 1e-3)
    if not is_positive and random.integers(4) == 0:
        low -= high / 8
    scale = (high - low) / 255 * random.choice([0.5, 1.0, 1.1])
    if random.integers(4) == 0:
        scale = 2.0 ** np.ceil(np.log2(scale))
    limits = np.iinfo(dtype)
    zero = limits.min if is_positive else int(np.clip(round(-low / scale), 0, 255)) + limits.min
    return Grid(np.float32(scale), zero, dtype)


def _rounded(step: Step, data: np.float32, random: np.random.Generator) -> Weights:
    assert step.weight is not None
    count = len(step.weight)
    flat = abs(step.weight.reshape(count, -1))
    largest = flat.max(1) if random.integers(2) else flat.max().reshape(1)
    scales = (largest / 127 + 1e-6).astype(np.float32)
    shaped = scales.reshape(-1, *[1] * (step.weight.ndim - 1))
    integers = np.clip(np.rint(step.weight / shaped), -127, 127).astype(np.int8)
    bias = step.bias
    if bias is not None:
        bias = np.rint(bias / (data * scales)).astype(np.int32)
    return Weights(integers, scales, bias)
