"""Ranges of values over samples, by which they become 8-bit integers.

    values of the FP32 graph, sample by sample ──> Observed ──method──> range of each value

What lies outside a range is cut off. A narrower one has finer steps: which is better shows only in
the outputs, so several methods are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor

from braid.engine.passes.quantised.calibrated import grid_of

Range = tuple[float, float]

KEPT = 1 << 15  # elements kept of a value; least and largest are of all elements

PERCENTILE = 99.99

_SHRUNK = [1 - step / 20 for step in range(15)]  # parts of the whole range that are tried


class Observed:
    """Elements of values, seen in the runs of samples."""

    def __init__(self, values: Collection[str], samples: int) -> None:
        self._values = values
        self._share = max(1, KEPT // samples)
        self._ends: dict[str, Range] = {}
        self._kept: dict[str, list[Tensor]] = {}

    def see(self, value: str, tensor: Tensor) -> None:
        if value not in self._values or not tensor.numel():
            return
        least, most = map(float, torch.aminmax(tensor))
        ends = self._ends.get(value, (least, most))
        self._ends[value] = min(ends[0], least), max(ends[1], most)
        step = max(1, tensor.numel() // self._share) | 1  # odd: rows are even in length
        self._kept.setdefault(value, []).append(tensor.flatten()[::step].clone())

    def by(self, method: Callable[[Range, Tensor], Range]) -> dict[str, Range]:
        """Ranges of the values that are finite, by a method."""
        return {
            value: method(ends, torch.cat(self._kept[value]))
            for value, ends in self._ends.items()
            if all(abs(end) < float("inf") for end in ends)
        }


def whole(ends: Range, _: Tensor) -> Range:
    return ends


def percentile(_: Range, elements: Tensor) -> Range:
    outside = 1 - PERCENTILE / 100
    least, most = torch.quantile(elements, torch.tensor([outside, 1 - outside])).tolist()
    return least, most


def least_error(ends: Range, elements: Tensor) -> Range:
    """The part of the whole range in which rounding and cutting off err least, squared."""

    def error(part: float) -> float:
        scale, zero = grid_of(ends[0] * part, ends[1] * part)
        rounded = (torch.round(elements / scale) + zero).clamp_(0, 255).sub_(zero).mul_(scale)
        return float(rounded.sub_(elements).square_().mean())

    best = min(_SHRUNK, key=error)
    return ends[0] * best, ends[1] * best


METHODS: Mapping[str, Callable[[Range, Tensor], Range]] = {
    "whole range": whole,
    f"percentile {PERCENTILE}": percentile,
    "least error": least_error,
}
"""Ways to take ranges, by their names for people."""
