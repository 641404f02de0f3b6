"""Protocols of what planners ask the engine, and one cost that needs no device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from braid.core.plan import EnginePart, StreamPlan
from braid.core.schedule import Stage
from braid.scheduler.streams import makespan_us

Parts = tuple[EnginePart, ...]
"""Parts of a model that run side by side."""


class StageCost(Protocol):
    """Latency of stages, measured or modelled."""

    def stage_latency_us(self, stage: Stage) -> float:
        """Latency of one stage alone, in microseconds; finite, not negative.

        ``stage.groups`` holds indices of the whole graph. Asked once per distinct stage.
        """
        ...


@runtime_checkable
class PartsCost(StageCost, Protocol):
    """A cost of engines, too."""

    def parts_us(self, stages: Sequence[Parts]) -> Sequence[float]:
        """Latencies in microseconds; infinite where a part is refused.

        Stages on own kernels only come before others of the same units.
        """
        ...


@dataclass(frozen=True, slots=True)
class OperatorLatencies:
    """Stage latency of ``braid plan``: the slowest group, and an overhead for each other group."""

    latency_us: Sequence[float]  # of each unit alone
    group_overhead_us: float = 0.0

    def stage_latency_us(self, stage: Stage) -> float:
        """Longest sum of latencies over the groups, plus the overhead of all but one group."""
        longest = max(sum(self.latency_us[unit] for unit in group) for group in stage.groups)
        return longest + self.group_overhead_us * (len(stage.groups) - 1)

    def plan_latency_us(self, plan: StreamPlan) -> float:
        """Latency of a plan in microseconds, as if units never disturbed each other."""
        forks = [len({launch.stream for launch in part}) - 1 for part in plan.segments() if part]
        return makespan_us(plan, self.latency_us) + self.group_overhead_us * sum(forks)
