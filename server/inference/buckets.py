"""Requests of other lengths in a scheduled shape, padded, where that is measured to be cheaper.

The batches of a padded request run the plan of the scheduled shape, together with requests that
have that length.

That padding is exact was shown by the import. It is checked again on requests of the live traffic,
of which one at a time is kept in memory (``braid.server.models.padding_checks``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from braid.core.inputs import ShapeClass
from braid.core.padding import PaddedAxis, at_length, length_of
from braid.core.schedule import Schedule
from braid.core.scheduled_lengths import LengthCosts, ScheduledLengths
from braid.server.inference.lengths import Request, can_be_padded, elements_of
from braid.server.inference.shape_latencies import ShapeTimes, bin_of

if TYPE_CHECKING:
    from braid.server.inference.requests import CheckedRequest

PROBE = 64
"""One request in so many runs unpadded all the same, so that what that takes stays known."""


CHECKED = 1000
"""One request of so many that ran padded is checked, and the first one."""

MOST_BYTES = 1 << 20
"""Requests with more are not kept for a check."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A request that ran padded."""

    request: CheckedRequest
    shape_class: ShapeClass  # that it ran in: longer than its own


class Buckets:
    """Padding of one replica's requests: to which lengths, and whether it held. Belongs to the
    event loop."""

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
        self.checked = 0  # requests
        self.failure = ""  # why nothing is padded any more
        self.sample: Sample | None = None  # to be checked
        self._left = 0  # requests that run padded until one is kept

    def ran(self, request: CheckedRequest, rows: int, ran: ShapeClass) -> None:
        """Count rows that were answered, and the class that they ran in."""
        shape_class = request.shape_class
        if self._scheduled is not None:
            axis = self._scheduled.axis
            length = length_of(shape_class, axis)
            if 0 < length <= axis.up_to:
                self.rows[min(bin_of(length), axis.up_to)] += rows
            if shape_class != ran and ran in self._scheduled:
                self.padded += rows
        if shape_class != ran and self.sample is None and not self.failure:
            self._left -= 1
            if self._left < 0:
                self._keep(request, ran)

    def _keep(self, request: CheckedRequest, ran: ShapeClass) -> None:
        """Keep a copy of a request to check."""
        parts = request.inputs.items()
        inputs = {name: part for name, part in parts if isinstance(part, bytes | memoryview)}
        if sum(map(len, inputs.values())) > MOST_BYTES:
            return
        assert len(inputs) == len(request.inputs), "what is stored elsewhere is not padded"
        self._left = CHECKED
        inputs = {name: bytes(part) for name, part in inputs.items()}
        self.sample = Sample(replace(request, inputs=inputs, reply=None), ran)

    def compared(self, error: float, tolerance: float) -> None:
        """Take the error of the padded answer to the sample, relative to its largest element."""
        self.checked += 1
        if not error <= tolerance:  # also of NaN
            self.failure = (
                f"outputs of a request had an error of {error:.2g} as it was padded; "
                f"{tolerance:.2g} is allowed"
            )

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
