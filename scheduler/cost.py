"""What planners ask the device, as Protocols, and one cost that needs no device.

planner ──asks──> StageCost, MergeRule      (implemented over engine.timing; faked in tests)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from core.schedule import Stage


class StageCost(Protocol):
    """Latency of stages, measured or modelled."""

    def stage_latency_us(self, stage: Stage) -> float:
        """Latency of one stage alone, in microseconds; positive and finite.

        ``stage.groups`` holds indices of the whole graph. Asked once per distinct stage.
        """
        ...


class MergeRule(Protocol):
    """Which units can become one kernel."""

    def can_merge(self, first: int, second: int) -> bool:
        """Whether two units of the whole graph can run as one merged kernel; symmetric.

        Units that can be merged pairwise can be merged together.
        """
        ...


@dataclass(frozen=True, slots=True)
class OperatorLatencies:
    """The stage latency of ``braid plan``: the slowest group, and a price for each further one."""

    latency_us: Sequence[float]  # of each unit alone
    group_overhead_us: float = 0.0

    def stage_latency_us(self, stage: Stage) -> float:
        """Longest sum of latencies over the groups, plus the overhead of all but one group."""
        longest = max(sum(self.latency_us[unit] for unit in group) for group in stage.groups)
        return longest + self.group_overhead_us * (len(stage.groups) - 1)
