"""Requests of different lengths in one batch, along a padded axis (``braid.core.padding``).

    request [1, 53] ──┐
    request [1, 61] ──┼─ lane of lengths up to 64 ──> batch [3, 61] ──> outputs, each cut
    request [1, 58] ──┘

Lengths that lie near each other share a lane, and with it what its batches are seen to take. A
batch is as long as the longest request in it, so one that runs alone is not padded.

Where a scheduled length is measured to be cheaper, a request is padded to that: its batches run the
plan of the scheduled shape, together with requests that have that length.

That padding is exact was shown by the import. It is checked again on requests of the live traffic,
of which one at a time is kept in memory (``braid.server.models.padding_checks``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Hashable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from braid.core.inputs import GivenTensor, ShapeClass
from braid.core.padding import PaddedAxis, at_length, length_of, takes
from braid.core.schedule import Schedule
from braid.core.scheduled_lengths import LengthCosts, ScheduledLengths
from braid.server.inference.shape_latencies import ShapeTimes, bin_of

if TYPE_CHECKING:
    from braid.server.inference.requests import CheckedRequest

LEAST_STEP = 8
"""Lengths of a lane differ by less than this, or than a quarter of the power of two below them."""

MAX_LANES = 512
"""Shape classes whose lane is remembered."""

PROBE = 64
"""One request in so many runs unpadded all the same, so that what that takes stays known."""

CHECKED = 1000
"""One request of so many that ran padded is checked, and the first one."""

MOST_BYTES = 1 << 20
"""Requests with more are not kept for a check."""


@dataclass(frozen=True, slots=True)
class Near:
    """Lane of all classes that are no longer than this one, and nearly as long."""

    longest: ShapeClass


@dataclass(frozen=True, slots=True)
class ManyRows(Near):
    """Lane of requests of one class that have more rows than scheduled batches take."""


@dataclass(frozen=True, slots=True)
class NoRows(Near):
    """Lane of requests of one class without rows, which share no batch with others."""


def longest_near(length: int) -> int:
    """Return the greatest length that shares a lane with ``length``, which is one at least."""
    step = max(LEAST_STEP, 1 << max(0, length.bit_length() - 3))
    return -(-length // step) * step


@dataclass(frozen=True, slots=True)
class Sample:
    """A request that ran padded."""

    request: CheckedRequest
    shape_class: ShapeClass  # that it ran in: longer than its own


class Lengths:
    """Padding of one replica's requests, along the first exact axis. Belongs to the event loop."""

    def __init__(self, axis: PaddedAxis | None, main: ShapeClass, times: ShapeTimes) -> None:
        """``times``: of what runs unpadded. ``main``: scheduled, as long as any."""
        self.axis = axis
        self._apart = {main}  # scheduled classes, each with a lane of its own
        self._near: dict[ShapeClass, Near | None] = {}  # None: it is not padded

        @cache
        def elements(length: int) -> int:
            return elements_of(main if axis is None else at_length(main, axis, length))

        self.costs = LengthCosts(lambda length: times.compared_s(elements(length)))
        self._scheduled = None if axis is None else ScheduledLengths(axis, self.costs)
        self._asked = 0
        self.rows = Counter[int]()  # that were answered, by length
        self.padded = 0  # rows of them that ran in a scheduled length, since the beginning
        self.checked = 0  # requests
        self.failure = ""  # why nothing is padded any more
        self.sample: Sample | None = None  # to be checked
        self._left = 0  # requests that run padded until one is kept

    def keep_apart(self, scheduled: Collection[ShapeClass]) -> None:
        """Take the classes whose schedules serve, beside the main one."""
        self._apart = {*scheduled}
        self._near.clear()

    def lane_of(self, request: CheckedRequest) -> Hashable:
        """Return what requests must have in common to share batches."""
        shape_class = request.shape_class
        if shape_class not in self._near:
            if len(self._near) >= MAX_LANES:
                self._near.clear()
            self._near[shape_class] = self._lane(shape_class)
        near = self._near[shape_class]
        is_padded = near is not None and self.axis and can_be_padded(request, self.axis)
        return near if is_padded else shape_class

    def _lane(self, shape_class: ShapeClass) -> Near | None:
        if shape_class in self._apart or self.axis is None:
            return None
        length = length_of(shape_class, self.axis)
        if not 0 < length <= self.axis.up_to:
            return None
        return Near(at_length(shape_class, self.axis, longest_near(length)))

    def joined(self, classes: Collection[ShapeClass]) -> ShapeClass:
        """Return the class of a batch of requests of one lane, as long as the longest of them."""
        any_of = next(iter(classes))
        if self.axis is None:
            return any_of
        longest = max(length_of(one, self.axis) for one in classes)
        return at_length(any_of, self.axis, longest)

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

    def scheduled_for(self, request: CheckedRequest, *, has_session: bool) -> ShapeClass | None:
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


def can_be_padded(request: CheckedRequest, axis: PaddedAxis) -> bool:
    given = [
        GivenTensor(name, spec.dtype, (request.rows, *map(int, spec.shape[1:])), data)
        for name, spec in request.shape_class.inputs
        if isinstance(data := request.inputs[name], bytes | memoryview)
    ]
    is_given = not request.is_empty and len(given) == len(request.inputs)
    return is_given and takes(given, axis)


def elements_of(lane: Hashable) -> int:
    """Elements of one row of all inputs, of a class or of the longest near one; at least one."""
    shape_class = lane.longest if isinstance(lane, Near) else lane
    assert isinstance(shape_class, ShapeClass)
    return max(1, sum(math.prod(map(int, spec.shape)) for _, spec in shape_class.inputs))
