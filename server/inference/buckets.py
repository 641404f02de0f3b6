"""Requests of other lengths in a scheduled shape, padded, where that is measured to be cheaper.

The batches of a padded request run the plan of the scheduled shape, together with requests that
have that length.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

from braid.core.inputs import ShapeClass
from braid.core.padding import PaddedAxis, at_length, length_of
from braid.core.schedule import Schedule
from braid.core.scheduled_lengths import LengthCosts, ScheduledLengths
from braid.server.inference.lengths import Request, can_be_padded, elements_of
from braid.server.inference.shape_latencies import ShapeTimes, bin_of

PROBE = 64
"""One request in so many runs unpadded all the same, so that what that takes stays known."""


class Buckets:
    """Scheduled lengths of one replica that take padded requests. Belongs to the event loop."""

    def __init__(self, axis: PaddedAxis | None, main: ShapeClass, times: ShapeTimes) -> None:
        """``times``: of what runs unpadded. ``main``: scheduled, as long as any."""

        @cache
        def elements(length: int) -> int:
            return elements_of(main if axis is None else at_length(main, axis, length))

        self.costs = LengthCosts(times, elements)
        self._scheduled = None if axis is None else ScheduledLengths(axis, self.costs)
        self._asked = 0
        self.rows = Counter[int]()  # that were answered, by length
        self.padded = 0  # rows of them that ran in a scheduled length, since the beginning

    def count(self, shape_class: ShapeClass, rows: int, ran: ShapeClass) -> None:
        """Count rows that were answered, and the class that they ran in."""
        if self._scheduled is not None:
            axis = self._scheduled.axis
            length = length_of(shape_class, axis)
            if 0 < length <= axis.up_to:
                self.rows[min(bin_of(length), axis.up_to)] += rows
            if shape_class != ran and ran in self._scheduled:
                self.padded += rows

    def schedule_serves(self, shape_class: ShapeClass, schedule: Schedule) -> None:
        """Take a scheduled class, by the schedule of its smallest batch size."""
        if self._scheduled is not None:
            self._scheduled.add(shape_class, schedule)

    def of(self, request: Request, *, has_session: bool) -> ShapeClass | None:
        """Return the scheduled class that a request runs in; None: in none, or unpadded."""
        own, scheduled = request.shape_class, self._scheduled
        if scheduled is None or (longer := scheduled.longer(own)) is None:
            return None
        self._asked += has_session
        if has_session and self._asked % PROBE == 0:
            return None
        if not scheduled.pays(own, longer, has_session=has_session):
            return None
        return longer if can_be_padded(request, scheduled.axis) else None
