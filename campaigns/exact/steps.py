"""Steps of small random networks, and their plain arithmetic in float64.

A step's result is an interval of each number: where sums end in FP32 is not a matter of one
number, as their order is free.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Array = NDArray[Any]

ROUNDING = 2.0**-24
"""Largest error of one operation in FP32, as a part of its result."""

FUNCTION = 1e-5
"""Largest error of a function such as the sigmoid in FP32."""


@dataclass(frozen=True, slots=True)
class Window:
    """How a kernel moves over images, alike along both axes but for its size."""

    kernel: tuple[int, int]
    stride: int = 1
    padding: tuple[int, int] = (0, 0)
    dilation: int = 1
    groups: int = 1
    counts_padding: bool = True  # of an average

    def result(self, extents: Sequence[int]) -> tuple[int, int]:
        pairs = zip(extents, self.kernel, self.padding, strict=True)
        spans = [(e + 2 * p - self.dilation * (k - 1) - 1) for e, k, p in pairs]
        height, width = (span // self.stride + 1 for span in spans)
        return height, width


@dataclass(frozen=True, slots=True)
class Step:
    """One layer: ``kind`` of its operator, then an activation, then rounding."""

    kind: str  # conv, linear, add, concat, max_pool, avg_pool, mean, function
    inputs: tuple[str, ...]
    output: str
    shape: tuple[int, ...]  # of the result, without the batch
    window: Window = Window((1, 1))
    weight: Array | None = None  # FP32, [out, in / groups, height, width] or [out, in]
    bias: Array | None = None
    activation: str = ""
    feeds_sum: bool = False  # may be rounded before the sum, or not


@dataclass(frozen=True, slots=True)
class Interval:
    """Least and largest number that each element may be; equal where it is known."""

    low: Array
    high: Array

    @staticmethod
    def exact(values: Array) -> Interval:
        """Known numbers."""
        wide = values.astype(np.float64)
        return Interval(wide, wide)

    @staticmethod
    def around(middle: Array, radius: Array) -> Interval:
        """Numbers at most ``radius`` from ``middle``; where that is no number, that."""
        safe = np.where(np.isfinite(middle), radius, 0.0)
        return Interval(middle - safe, middle + safe)

    @property
    def middle(self) -> Array:
        """Number in the middle, or what is no number."""
        half: Array = np.where(self.low == self.high, self.low, (self.low + self.high) / 2)
        return half

    @property
    def radius(self) -> Array:
        """Distance from the middle to both ends; 0 for what is no finite number."""
        gap = (self.high - self.low) / 2
        finite: Array = np.where(np.isfinite(gap), gap, 0.0)
        return finite

    def mapped(self, function: Any, error: float = 0.0) -> Interval:
        """A rising function of each number, with this largest error."""
        low, high = function(self.low), function(self.high)
        return Interval(low - error, high + error)


ACTIVATIONS: dict[str, tuple[Any, float]] = {
    "": (lambda x: x, 0.0),
    "Relu": (lambda x: np.maximum(x, 0), 0.0),
    "Clip": (lambda x: np.clip(x, 0, 6), 0.0),
    "LeakyRelu": (lambda x: np.where(x < 0, 0.125 * x, x), 0.0),
    "Sigmoid": (lambda x: 1 / (1 + np.exp(-x)), FUNCTION),
    "Tanh": (np.tanh, FUNCTION),
}
"""Rising functions by their ONNX names, and their largest errors."""


@dataclass(frozen=True, slots=True)
class Sums:
    """How sums of products come about."""

    roundings: int = 0  # at most, of each sum; 0: one a product
    offset: float = 0.0  # what each operand is shifted by while it is multiplied
    near: int = 0  # pixels around a window of 3 x 3 whose size counts, too (Winograd's method)


def evaluated(step: Step, operands: Sequence[Interval], sums: Sums = Sums()) -> Interval:
    """Result of a step before it is rounded."""
    if step.kind in ("conv", "linear", "avg_pool", "mean"):
        result = _sums(step, operands[0], sums)
    elif step.kind == "add":
        low, high = (sum(getattr(one, end) for one in operands) for end in ("low", "high"))
        slack = ROUNDING * sum(np.abs(one.middle) for one in operands)
        spread = Interval(np.asarray(low), np.asarray(high))
        result = Interval.around(spread.middle, spread.radius + slack)
    elif step.kind == "concat":
        ends = [np.concatenate([getattr(o, e) for o in operands], 1) for e in ("low", "high")]
        result = Interval(*ends)
    elif step.kind == "max_pool":
        result = Interval(_largest(operands[0].low, step), _largest(operands[0].high, step))
    else:
        result = operands[0]
    with np.errstate(over="ignore"):
        return result.mapped(*ACTIVATIONS[step.activation])


def _sums(step: Step, x: Interval, sums: Sums) -> Interval:
    weight, bias = _weights(step, x)
    middle = _weighted(x.middle, weight, step) + bias
    size = np.nan_to_num(np.abs(x.middle), posinf=0) + sums.offset
    if sums.near and step.kind == "conv" and _is_dense(step.window):
        around = 2 * sums.near + 1
        place = Window((around, around), padding=(sums.near, sums.near))
        size = _taps(size, place, 0.0).max((4, 5))
    size = _weighted(size, np.abs(weight), step) + abs(bias)
    radius = size * ROUNDING * (sums.roundings or math.prod(weight.shape[1:]) + 4)
    if x.radius.any():
        radius = radius + _weighted(x.radius, np.abs(weight), step)
    return Interval.around(middle / _divisor(step, x), radius / _divisor(step, x))


def _is_dense(window: Window) -> bool:
    return window.kernel == (3, 3) and window.stride == window.dilation == window.groups == 1


def _weights(step: Step, x: Interval) -> tuple[Array, Array]:
    if step.kind == "conv" or step.kind == "linear":
        assert step.weight is not None
        weight = step.weight.astype(np.float64)
        plain = np.zeros(len(weight)) if step.bias is None else step.bias.astype(np.float64)
        return weight, plain.reshape(-1, *[1] * (weight.ndim - 2))
    channels = x.low.shape[1]
    kernel = x.low.shape[2:] if step.kind == "mean" else step.window.kernel
    return np.ones((channels, 1, *kernel)), np.zeros(1)


def _divisor(step: Step, x: Interval) -> Array | float:
    """How many numbers each element of an average is of; 1 for other sums."""
    if step.kind == "mean":
        return float(math.prod(x.low.shape[2:]))
    if step.kind != "avg_pool":
        return 1.0
    if step.window.counts_padding:
        return float(math.prod(step.window.kernel))
    ones = np.ones((1, 1, *x.low.shape[2:]))
    return _weighted(ones, np.ones((1, 1, *step.window.kernel)), step)


def _weighted(x: Array, weight: Array, step: Step) -> Array:
    if step.kind == "linear":
        products: Array = x.reshape(len(x), -1) @ weight.T
        return products
    window = Window(x.shape[2:]) if step.kind == "mean" else step.window
    taps = _taps(x, window, 0.0)  # [batch, channels, height, width, kernel, kernel]
    groups = step.window.groups if step.kind == "conv" else len(weight)
    width, count = taps.shape[1] // groups, len(weight) // groups
    parts = []
    for group in range(groups):
        data = taps[:, group * width : (group + 1) * width].transpose(0, 2, 3, 1, 4, 5)
        flat = data.reshape(*data.shape[:3], -1)
        kernel = weight[group * count : (group + 1) * count].reshape(count, -1)
        parts.append((flat @ kernel.T).transpose(0, 3, 1, 2))
    return np.concatenate(parts, 1)


def _largest(x: Array, step: Step) -> Array:
    largest: Array = _taps(x, step.window, -np.inf).max((4, 5))
    return largest


def _taps(x: Array, window: Window, padding: float) -> Array:
    """Numbers under the kernel at each place: [batch, channels, height, width, *kernel]."""
    (top, left), step, apart = window.padding, window.stride, window.dilation
    wide = np.pad(x, ((0, 0), (0, 0), (top, top), (left, left)), constant_values=padding)
    spans = tuple(apart * (k - 1) + 1 for k in window.kernel)
    views = sliding_window_view(wide, spans, (2, 3))
    taps: Array = views[:, :, ::step, ::step, ::apart, ::apart]
    return taps
