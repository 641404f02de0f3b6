"""Latency of each ending as a stage: grouped, asked once per distinct stage, remembered.

    ending (bit mask) ──groups──> Stage ──key known?──> StageMemo ──no──> StageCost

This is GenerateStage of IOS (Algorithm 1, lines 23-33): the better one of concurrent execution
and, where the units can be merged, operator merge.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from core.errors import WorkerFault
from core.schedule import Stage, Strategy
from scheduler.cost import MergeRule, StageCost
from scheduler.dag import bits
from scheduler.endings import Endings
from scheduler.signature import Group, StageKey, StageKeys
from scheduler.units import UnitGraph


@dataclass(slots=True)
class StageMemo:
    """Stage latencies known in this search, shared by all blocks of a graph."""

    cost: StageCost
    numbers: dict[str, int] = field(default_factory=dict)  # group texts, numbered
    latency_us: dict[StageKey, float] = field(default_factory=dict)
    asking_seconds: float = 0.0  # time spent in ``cost``

    def ask(self, key: StageKey, stage: Callable[[], Stage]) -> float:
        """The latency under ``key``; asks the cost if it is not known yet."""
        latency = self.latency_us.get(key)
        if latency is None:
            described = stage()
            started = time.perf_counter()
            latency = self.cost.stage_latency_us(described)
            self.asking_seconds += time.perf_counter() - started
            if not 0 < latency < math.inf:
                raise WorkerFault(f"a stage latency of {latency} us was measured: {described}")
            self.latency_us[key] = latency
        return latency


class StageTable(dict[int, float]):
    """Ending -> latency in microseconds, filled on first use."""

    def __init__(
        self,
        endings: Endings,
        block: UnitGraph,
        units: Sequence[int],
        memo: StageMemo,
        merge: MergeRule | None = None,
    ) -> None:
        super().__init__()
        self._endings = endings
        self._units = tuple(units)  # local index -> index in the whole graph
        self._memo = memo
        self._keys = StageKeys(block, memo.numbers)

    def __missing__(self, ending: int) -> float:
        groups = tuple([tuple(bits(group)) for group in self._endings.groups(ending)])
        latency = self._memo.ask(self._keys.key(groups), lambda: self._stage(groups))
        self[ending] = latency
        return latency

    def stage(self, ending: int) -> Stage:
        """The stage that ``ending`` runs as, in indices of the whole graph."""
        groups = tuple([tuple(bits(group)) for group in self._endings.groups(ending)])
        return self._stage(groups, self[ending])

    def _stage(
        self,
        groups: Sequence[Group],
        latency_us: float | None = None,
        strategy: Strategy = "concurrent",
    ) -> Stage:
        named = tuple(tuple(self._units[unit] for unit in group) for group in groups)
        return Stage(named, strategy, latency_us)
