"""Requests of other lengths in a scheduled shape, padded, where that is measured to be cheaper.

    length 53 ──next scheduled length──> 64 ──cheaper than unpadded──> lane of the class of 64
         └─────────────────────────────────────────otherwise──> as without one (lengths.py)

Padding is exact along the axis (``braid.core.padding``). Its batches run the plan of the scheduled
shape, together with requests that have that length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache

from braid.core.curve import Curve
from braid.core.inputs import ShapeClass
from braid.core.padding import LEAST_SAVED, MOST_PADDING, PaddedAxis
from braid.core.runtimes import ONNXRUNTIME
from braid.core.schedule import Schedule
from braid.server.inference.lengths import (
    Request,
    at_length,
    can_be_padded,
    elements_of,
    length_of,
)
from braid.server.inference.shape_latencies import ShapeTimes, bin_of

PROBE = 64
"""One request in so many runs unpadded all the same, so that what that takes stays known."""

MAX_CLASSES = 512
"""Shape classes whose scheduled shape is remembered."""


class LengthCosts:
    """Expected seconds of a row by length: unpadded, and by a schedule's plan."""

    def __init__(self, times: ShapeTimes, elements: Callable[[int], int]) -> None:
        """``times``: of what runs unpadded. ``elements``: of a row, by its length."""
        self._times = times
        self._elements = elements
        self._ratios: dict[float, float] = {}  # length -> plan's latency over the session's
        self._compared_s: dict[float, float] = {}  # length -> the session's, in that comparison
        self._ratio, self._compared = Curve({}), Curve({})

    def compared(self, length: int, schedule: Schedule) -> None:
        """Learn from the comparison that a schedule rests on."""
        plan_us, session_us = schedule.provenance.measured_us, schedule.latency_in(ONNXRUNTIME)
        if plan_us and session_us:
            self._ratios[length] = plan_us / session_us
            self._compared_s[length] = session_us / 1e6
            self._draw()
        else:
            self.forget(length)

    def forget(self, length: int) -> None:
        self._ratios.pop(length, None)
        self._compared_s.pop(length, None)
        self._draw()

    def _draw(self) -> None:
        self._ratio, self._compared = Curve(self._ratios), Curve(self._compared_s, rises=True)

    def unpadded_s(self, length: int) -> float | None:
        """Expected seconds of a length without padding, relative to others; None: not known.

        As observed, once two lengths were; until then as in the comparisons of schedules.
        """
        if self._times.are_compared:
            return self._times.expected_s(self._elements(length))
        return self._compared.at(length)

    def planned_s(self, length: int) -> float | None:
        """Expected seconds of a length if it had, or has, a schedule; None: not known."""
        unpadded_s, ratio = self.unpadded_s(length), self._ratio.within(length)
        return None if unpadded_s is None or ratio is None else unpadded_s * ratio

    def is_cheaper(self, length: int, scheduled: int) -> bool:
        """Whether a scheduled length takes less than a shorter one does unpadded."""
        unpadded_s, planned_s = self.unpadded_s(length), self.planned_s(scheduled)
        if unpadded_s is None or planned_s is None:
            return False
        return scheduled in self._ratios and planned_s < (1 - LEAST_SAVED) * unpadded_s


class Buckets:
    """Scheduled lengths of one replica that take padded requests. Belongs to the event loop."""

    def __init__(self, axis: PaddedAxis | None, main: ShapeClass, times: ShapeTimes) -> None:
        """``times``: of what runs unpadded. ``main``: scheduled, as long as any."""

        @cache
        def elements(length: int) -> int:
            return elements_of(main if axis is None else at_length(main, axis, length))

        self.costs = LengthCosts(times, elements)
        self._axis = axis
        self._scheduled: set[ShapeClass] = set()  # those whose schedule serves
        self._next: dict[ShapeClass, ShapeClass | None] = {}
        self._asked = 0
        self.rows = Counter[int]()  # that were answered since ``take_rows``, by length
        self.padded = 0  # rows of them that ran in a scheduled length, since the beginning

    def count(self, shape_class: ShapeClass, rows: int, ran: ShapeClass) -> None:
        """Count rows that were answered, and the class that they ran in."""
        if self._axis is not None:
            length = length_of(shape_class, self._axis)
            if 0 < length <= self._axis.up_to:
                self.rows[min(bin_of(length), self._axis.up_to)] += rows
            if shape_class != ran and ran in self._scheduled:
                self.padded += rows

    def take_rows(self) -> Counter[int]:
        """Return the rows by length that were counted since this was asked last."""
        rows, self.rows = self.rows, Counter()
        return rows

    def schedule_serves(self, shape_class: ShapeClass, schedule: Schedule) -> None:
        """Take a scheduled class, by the schedule of its smallest batch size."""
        if self._axis is None:
            return
        self._scheduled.add(shape_class)
        self._next.clear()
        self.costs.compared(length_of(shape_class, self._axis), schedule)

    def drop(self, shape_class: ShapeClass) -> None:
        """Pad no more to a class."""
        if self._axis is None:
            return
        self._scheduled.discard(shape_class)
        self._next.clear()
        self.costs.forget(length_of(shape_class, self._axis))

    def of(self, request: Request, *, has_session: bool) -> ShapeClass | None:
        """Return the scheduled class that a request runs in; None: in none, or unpadded."""
        own, axis = request.shape_class, self._axis
        if axis is None or own in self._scheduled:
            return None
        if own not in self._next:
            if len(self._next) >= MAX_CLASSES:
                self._next.clear()
            self._next[own] = self._next_longer(own, axis)
        scheduled = self._next[own]
        if scheduled is None or not self._pays(own, scheduled, axis, has_session=has_session):
            return None
        return scheduled if can_be_padded(request, axis) else None

    def _pays(
        self, own: ShapeClass, scheduled: ShapeClass, axis: PaddedAxis, *, has_session: bool
    ) -> bool:
        length, longer = length_of(own, axis), length_of(scheduled, axis)
        if not has_session:
            return length >= longer * (1 - MOST_PADDING)
        self._asked += 1
        return self._asked % PROBE != 0 and self.costs.is_cheaper(length, longer)

    def _next_longer(self, own: ShapeClass, axis: PaddedAxis) -> ShapeClass | None:
        length = length_of(own, axis)
        if not 0 < length <= axis.up_to:
            return None
        longer = [
            one
            for one in self._scheduled
            if length < length_of(one, axis) <= axis.up_to and _is_alike(own, one, axis)
        ]
        return min(longer, key=lambda one: length_of(one, axis), default=None)


def _is_alike(own: ShapeClass, other: ShapeClass, axis: PaddedAxis) -> bool:
    """Whether two classes differ in their length only."""
    return at_length(own, axis, length_of(other, axis)) == other
