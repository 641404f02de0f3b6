"""Scheduled lengths along a padded axis, and which of them a shorter call pays to be padded to.

Of a server and of the library alike. Padding is exact along the axis (``braid.core.padding``).
"""

from collections.abc import Callable

from braid.core.curve import Curve
from braid.core.inputs import ShapeClass
from braid.core.padding import LEAST_SAVED, MOST_PADDING, PaddedAxis, at_length, length_of
from braid.core.runtimes import ONNXRUNTIME
from braid.core.schedule import Schedule

MAX_CLASSES = 512
"""Shape classes whose scheduled shape is remembered."""


class LengthCosts:
    """Expected seconds of a row by length: unpadded, and by a schedule's plan."""

    def __init__(self, observed_s: Callable[[int], float | None] = lambda length: None) -> None:
        """``observed_s``: of a length, as it ran unpadded; None: two are not compared yet."""
        self._observed_s = observed_s
        self._ratios: dict[float, float] = {}  # length -> plan's latency over the session's
        self._compared_s: dict[float, float] = {}  # length -> the session's, in that comparison
        self._compared = Curve({})

    def compared(self, length: int, schedule: Schedule) -> None:
        """Learn from the comparison that a schedule rests on."""
        plan_us, session_us = schedule.serving_us, schedule.latency_in(ONNXRUNTIME)
        if plan_us and session_us:
            self._ratios[length] = plan_us / session_us
            self._compared_s[length] = session_us / 1e6
        else:
            self._ratios.pop(length, None)
            self._compared_s.pop(length, None)
        self._compared = Curve(self._compared_s, rises=True)

    def unpadded_s(self, length: int) -> float | None:
        """Expected seconds of a length without padding, relative to others; None: not known.

        As observed, once two lengths were; until then as in the comparisons of schedules.
        """
        observed_s = self._observed_s(length)
        return self._compared.at(length) if observed_s is None else observed_s

    def is_cheaper(self, length: int, scheduled: int) -> bool:
        """Whether a scheduled length takes less than a shorter one does unpadded."""
        ratio = self._ratios.get(scheduled)
        own_s, longer_s = self.unpadded_s(length), self.unpadded_s(scheduled)
        if ratio is None or own_s is None or longer_s is None:
            return False
        return ratio * longer_s < (1 - LEAST_SAVED) * own_s


class ScheduledLengths:
    """Classes that differ in their length along one axis and have schedules."""

    def __init__(self, axis: PaddedAxis, costs: LengthCosts) -> None:
        self.axis, self.costs = axis, costs
        self._scheduled: set[ShapeClass] = set()
        self._next: dict[ShapeClass, ShapeClass | None] = {}

    def __contains__(self, shape_class: ShapeClass) -> bool:
        return shape_class in self._scheduled

    def add(self, shape_class: ShapeClass, schedule: Schedule | None) -> None:
        """Take a class, by the schedule of its smallest batch size; None: it has none there."""
        self._scheduled.add(shape_class)
        self._next.clear()
        if schedule is not None:
            self.costs.compared(length_of(shape_class, self.axis), schedule)

    def longer(self, own: ShapeClass) -> ShapeClass | None:
        """Return the next longer scheduled class; None: there is none, or ``own`` is scheduled."""
        if own in self._scheduled:
            return None
        if own not in self._next:
            if len(self._next) >= MAX_CLASSES:
                self._next.clear()
            self._next[own] = self._next_longer(own)
        return self._next[own]

    def pays(self, own: ShapeClass, longer: ShapeClass, *, has_session: bool) -> bool:
        """Whether padding is cheaper; ``has_session``: other shapes run without preparation."""
        length, scheduled = length_of(own, self.axis), length_of(longer, self.axis)
        if not has_session:
            return length >= scheduled * (1 - MOST_PADDING)
        return self.costs.is_cheaper(length, scheduled)

    def _next_longer(self, own: ShapeClass) -> ShapeClass | None:
        length, up_to = length_of(own, self.axis), self.axis.up_to
        longer = [
            one
            for one in self._scheduled
            if 0 < length < (scheduled := length_of(one, self.axis)) <= up_to
            and at_length(own, self.axis, scheduled) == one
        ]
        return min(longer, key=lambda one: length_of(one, self.axis), default=None)
