"""What planners ask the engine, as Protocols, and one cost that needs no device.

planner ──asks──> StageCost        how long a stage takes, measured
        ──reads─> DeviceFacts      what else is known: merging, overheads, use of the device
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from braid.core.plan import StreamPlan
from braid.core.schedule import Stage
from braid.scheduler.streams import makespan_us


class StageCost(Protocol):
    """Latency of stages, measured or modelled."""

    def stage_latency_us(self, stage: Stage) -> float:
        """Latency of one stage alone, in microseconds; finite, not negative.

        ``stage.groups`` holds indices of the whole graph. Asked once per distinct stage.
        """
        ...


@runtime_checkable
class RepeatableCost(StageCost, Protocol):
    """A cost that varies from one measurement to the next and can be measured again."""

    def measure_again_us(self, stage: Stage) -> float:
        """A fresh, independent measurement of a stage that was measured before."""
        ...


class MergeRule(Protocol):
    """Which units can become one kernel."""

    def can_merge(self, first: int, second: int) -> bool:
        """Whether two units of the whole graph can run as one merged kernel; symmetric.

        Units that can be merged pairwise can be merged together. Their latency as one kernel is
        asked as a stage of one group with the strategy ``merge``.
        """
        ...


@dataclass(frozen=True, slots=True)
class MergeGroups:
    """A MergeRule by lists of units that can all become one kernel."""

    groups: tuple[tuple[int, ...], ...]

    def can_merge(self, first: int, second: int) -> bool:
        """Whether one of the lists holds both."""
        return any(first in group and second in group for group in self.groups)


@dataclass(frozen=True, slots=True)
class Overheads:
    """Fixed prices on the device, for lower bounds: too small is safe, except ``stage_us``."""

    stage_us: float  # at least what any stage pays once; too *large* is safe here
    group_us: float = 0.0  # what each group after the first adds to a stage
    launch_us: float = 0.0  # what one unit pays before it uses any resource


@dataclass(frozen=True, slots=True)
class UnitProfile:
    """How one unit uses the device.

    ``work_us`` has one entry for each shared resource (multiprocessors or cores, memory): the
    time for which the unit would occupy the whole resource. Running units side by side can hide
    latency but not work, so no stage is faster than the work of its units summed.
    """

    work_us: tuple[float, ...] = ()
    demand: float = 0.0  # threads, registers and shared memory, as one number (Opara)
    memory_bound: bool = False  # limited by memory rather than by arithmetic (Opara)


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What the engine can tell besides stage latencies. Every part may be missing."""

    merge: MergeRule | None = None
    overheads: Overheads | None = None
    profiles: Sequence[UnitProfile] = field(default_factory=tuple)  # one a unit, or none


@dataclass(frozen=True, slots=True)
class OperatorLatencies:
    """The stage latency of ``braid plan``: the slowest group, and a price for each further one."""

    latency_us: Sequence[float]  # of each unit alone
    group_overhead_us: float = 0.0

    def stage_latency_us(self, stage: Stage) -> float:
        """Longest sum of latencies over the groups, plus the overhead of all but one group."""
        longest = max(sum(self.latency_us[unit] for unit in group) for group in stage.groups)
        return longest + self.group_overhead_us * (len(stage.groups) - 1)

    def plan_latency_us(self, plan: StreamPlan) -> float:
        """The same for a plan: between barriers, as if units never disturbed each other."""
        forks = [len({launch.stream for launch in part}) - 1 for part in plan.segments() if part]
        return makespan_us(plan, self.latency_us) + self.group_overhead_us * sum(forks)
