"""Answers of a served random network against its plain reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from campaigns.exact.precisions import Precision
from campaigns.exact.steps import Array, Interval, evaluated


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a comparison came to."""

    numbers: int  # compared
    free: int  # of these, numbers for which the reference leaves more than one
    outside: int  # numbers that are none of those
    worst: float  # distance of one of these from the nearest, as a part of the row's largest number
    where: str = ""  # step of the first of these

    def plus(self, other: Comparison) -> Comparison:
        """Both together."""
        return Comparison(
            self.numbers + other.numbers,
            self.free + other.free,
            self.outside + other.outside,
            max(self.worst, other.worst),
            self.where or other.where,
        )


NOTHING = Comparison(0, 0, 0, 0.0)


def compared(precision: Precision, x: Array, answers: Mapping[str, Array]) -> Comparison:
    """Compare each step that answers show, computed from what they show of the steps before."""
    values = {"x": precision.entered(x)}
    total = NOTHING
    with np.errstate(all="ignore"):
        for step in precision.drawn.steps:
            operands = [precision.read(step, name, values[name]) for name in step.inputs]
            result = evaluated(step, operands, precision.sums(step))
            allowed = precision.stored(step, result)
            shown = answers.get(step.output)
            if shown is not None:
                total = total.plus(_outside(allowed, shown, step.output))
                allowed = Interval.exact(shown)
            values[step.output] = precision.meant(step.output, allowed)
    if "y" in answers:
        total = total.plus(_outside(_in_fp32(values[step.output]), answers["y"], "y"))
    return total


def _in_fp32(numbers: Interval) -> Interval:
    return Interval.around(numbers.middle, numbers.radius + abs(numbers.middle) * 2.0**-23)


def _outside(allowed: Interval, shown: Array, where: str) -> Comparison:
    got = shown.astype(np.float64).reshape(allowed.low.shape)
    inside = (got >= allowed.low) & (got <= allowed.high)
    nothing = np.isnan(allowed.middle)
    inside = np.where(nothing, np.isnan(got), inside)
    size = np.nan_to_num(abs(allowed.middle), posinf=0).reshape(len(got), -1).max(1)
    size = size.reshape(-1, *[1] * (got.ndim - 1)) + 1e-30
    gap = np.maximum(allowed.low - got, got - allowed.high) / size
    worst = 0.0 if inside.all() else float(np.nan_to_num(gap[~inside], nan=np.inf).max())
    count = int((~inside).sum())
    free = int((allowed.low != allowed.high).sum())
    return Comparison(got.size, free, count, worst, where if count else "")
