"""Plans that are ready to run on a device, and how long their runs may take."""

from collections.abc import Callable
from dataclasses import dataclass, field

from braid.core.program import PlanToRun
from braid.engine.link.messages import PrepareExecutable
from braid.engine.link.shared_memory import SlotLayout
from braid.engine.link.watch import RunBound

WhenUnwanted = Callable[[Callable[[], object]], object]
"""Calls its argument once no request waits for a run any more."""

FACTOR = 20.0
LEAST_FACTOR = 3.0


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Least and greatest limit of a run, in seconds, as the operator sets them.

    The limit of one run follows from the latency of its plan when that was prepared:

        limit = 20 times the plan's latency, at least ``floor_s``, at most ``cap_s``;
                never less than three times that latency

    The latency is that of the worker's own first runs, on inputs of its own, so that no caller can
    raise the limit. A caller's deadline ends a run earlier, if all callers of its batch have one.
    """

    floor_s: float = 20.0
    cap_s: float = 60.0

    def bound(self, latency_s: float) -> RunBound:
        """Return the bound of one run of a plan that took ``latency_s`` when it was prepared.

        A worker is not replaced before a run had ``LEAST_FACTOR`` times that latency, even if no
        request waits for the run any more: operators that cannot be stopped may take that long.
        """
        kill_after_s = LEAST_FACTOR * latency_s
        limit_s = min(max(self.floor_s, FACTOR * latency_s), self.cap_s)
        return RunBound(max(limit_s, kill_after_s), kill_after_s)


@dataclass(slots=True, eq=False)
class Executable:
    """A plan that is ready to run on the device."""

    number: int
    to_run: PlanToRun
    layout: SlotLayout = field(repr=False)
    bound: RunBound = field(default_factory=RunBound, repr=False)  # of one run
    needs_finite: bool = False  # whether its runs depend on inputs being finite
    heap_bytes: int = 0  # of its outputs, beside what the inputs' strings take; as much as was seen
    run_s: float = 0.0  # seconds of its first run
    size_bytes: int = 0  # that its release gives back, about
    work_s: float = 0.0  # seconds that it took to make

    @property
    def digest(self) -> str:
        return self.to_run.program.digest

    @property
    def plan_id(self) -> str:
        return self.to_run.plan_id

    @property
    def request(self) -> PrepareExecutable:
        return PrepareExecutable(self.number, self.to_run)


def input_bytes(layout: SlotLayout) -> int:
    return sum(place.size_bytes for place in layout.inputs.values())
