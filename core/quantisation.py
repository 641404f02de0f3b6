"""How an FP32 model computes on 8-bit integers: ranges of its values, and units that stay wide.

It is found once for a registration and kept with each schedule, so that every batch size, device
and restart makes the same graph of it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from braid.core.errors import InvalidArtefact

MAX_NAMED = 8
"""Units that are named to people."""


@dataclass(frozen=True, slots=True)
class Shift:
    """Mean of what rounding adds to a unit's results, by output channel; its bias makes up for it.

    ``steps`` has one signed byte a channel: the largest shift of the unit is 127 steps.
    """

    step: float
    steps: bytes


@dataclass(frozen=True, slots=True)
class Quantisation:
    """Ranges by which values become integers, and what was measured of them."""

    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # by value
    wide: tuple[str, ...] = ()  # names of units that stay in FP32, the most sensitive first
    method: str = ""  # how the ranges were taken, for people
    error: float | None = None  # of outputs on samples, as plans are compared
    samples: int = 0  # that ``error`` is of
    candidates: int = 0  # units with weights that could be integers; ``wide`` are some of them
    shifts: Mapping[str, Shift] = field(default_factory=dict)  # by unit; empty: biases stay

    @property
    def text(self) -> str:
        """Canonical text of what decides the graph; ``parsed`` reads it."""
        ranges = {name: list(self.ranges[name]) for name in sorted(self.ranges)}
        parts: list[Any] = [ranges, list(self.wide)]
        if self.shifts:
            ordered = sorted(self.shifts.items())
            parts.append({name: [shift.step, _to_text(shift.steps)] for name, shift in ordered})
        return json.dumps(parts, separators=(",", ":"))

    @staticmethod
    def parsed(text: str) -> Quantisation:
        """Read ``text``. Raises InvalidArtefact: it is none."""
        try:
            ranges, wide, *more = json.loads(text)
            limits = {name: (float(least), float(most)) for name, (least, most) in ranges.items()}
            shifts = {
                name: Shift(float(step), base64.b64decode(steps, validate=True))
                for name, (step, steps) in (more[0].items() if more else ())
            }
            return Quantisation(limits, tuple(map(str, wide)), shifts=shifts)
        except (ValueError, TypeError, AttributeError) as error:
            raise InvalidArtefact(f"the quantisation is malformed: {error!r}") from error


def _to_text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def quantisation_text(how: Quantisation) -> str:
    """Text for people: what computes on integers, what does not, and how far it errs."""
    narrow = how.candidates - len(how.wide)
    text = f"{narrow} of {how.candidates} units with weights, by {how.method}"
    if how.shifts:
        text += ", biases corrected"
    if how.error is not None:
        text += f", {how.error:.2g} on {how.samples} samples"
    if not how.wide:
        return text
    named = ", ".join(how.wide[:MAX_NAMED])
    more = len(how.wide) - MAX_NAMED
    return f"{text}; in FP32: {named}" + (f" and {more} more" if more > 0 else "")
