"""Variants that each ending of a block can run as, and their latencies.

StageTable is GenerateStage of IOS (Algorithm 1, lines 23-33): the better one of concurrent
execution and, where the units can be merged, operator merge.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from braid.core.errors import WorkerFault
from braid.core.schedule import Stage, Strategy
from braid.scheduler.cost import StageCost
from braid.scheduler.dag import bits, mask_of
from braid.scheduler.endings import Endings
from braid.scheduler.signature import StageKey, StageKeys
from braid.scheduler.units import UnitGraph

Variant = tuple[Strategy, tuple[int, ...]]
"""One way to run an ending: a strategy and the groups, as sets of the block's units."""


@dataclass(slots=True)
class StageMemo:
    """Stage latencies known in this search, shared by all blocks of a graph."""

    cost: StageCost
    latency_us: dict[StageKey, float] = field(default_factory=dict)
    group_numbers: dict[str, int] = field(default_factory=dict)  # for StageKeys

    def ask(self, key: StageKey, stage: Stage) -> float:
        """The latency of a stage whose key is not known yet."""
        latency_us = self.cost.stage_latency_us(stage)
        if not 0 <= latency_us < math.inf:
            raise WorkerFault(f"a stage latency of {latency_us} us was measured: {stage}")
        self.latency_us[key] = latency_us
        return latency_us


@dataclass(frozen=True, slots=True)
class Strategies:
    """Strategies that a stage may use, besides a unit alone."""

    concurrent: bool = True
    merge_groups: tuple[tuple[int, ...], ...] = ()  # units that can all become one kernel


class StageSpace:
    """The variants of each ending of one block."""

    def __init__(
        self,
        graph: UnitGraph,
        units: Sequence[int],
        endings: Endings,
        strategies: Strategies,
        group_numbers: dict[str, int],
    ) -> None:
        self.endings = endings
        self.keys = StageKeys(graph.restrict(units), group_numbers)
        self._named = _Named(units)
        self._concurrent = strategies.concurrent
        self._mates = _mates(units, strategies.merge_groups)
        self.all_concurrent = strategies.concurrent and not any(self._mates)

    def variants(self, ending: int) -> list[Variant]:
        """The ways to run an ending; none if no allowed strategy can."""
        alone = not ending & (ending - 1)
        possible: list[Variant] = []
        if self._mates and not alone and self._mergeable(ending):
            possible.append(("merge", (ending,)))
        if self._concurrent or alone:
            possible.append(("concurrent", self.endings.groups(ending)))
        return possible

    def key(self, variant: Variant) -> StageKey:
        """Key that two variants share if they are the same to the device, in this search."""
        return self.keys.key(variant[1], variant[0])

    def stage(self, variant: Variant, latency_us: float | None = None) -> Stage:
        """The stage, in units of the whole graph."""
        strategy, groups = variant
        named = sorted([self._named[group] for group in groups])
        return Stage(tuple(named), strategy, latency_us)

    def _mergeable(self, ending: int) -> bool:
        return all(not ending & ~(self._mates[unit] | 1 << unit) for unit in bits(ending))


class _Named(dict[int, tuple[int, ...]]):
    """Group -> its units in the whole graph."""

    def __init__(self, units: Sequence[int]) -> None:
        super().__init__()
        self._units = units

    def __missing__(self, group: int) -> tuple[int, ...]:
        self[group] = tuple(self._units[unit] for unit in bits(group))
        return self[group]


def _mates(units: Sequence[int], merge_groups: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """For each unit of a block, the units it can be merged with, as a set; empty if none can."""
    mates = {unit: set[int]() for unit in units}
    for group in merge_groups:
        for unit in mates.keys() & set(group):
            mates[unit] |= {other for other in group if other != unit}
    if not merge_groups:
        return ()
    return tuple(mask_of(j for j, v in enumerate(units) if v in mates[u]) for u in units)


class StageTable(dict[int, float]):
    """Ending -> latency in microseconds of its best variant, filled on first use.

    An ending that no strategy can run takes forever.
    """

    def __init__(self, space: StageSpace, memo: StageMemo) -> None:
        super().__init__()
        self._space = space
        self._memo = memo
        # Looked up once a stage: at hundreds of thousands of them, attribute chains show.
        self._latency_us = memo.latency_us
        self._key = space.keys.key
        self._groups = space.endings.groups

    def __missing__(self, ending: int) -> float:
        if self._space.all_concurrent:
            latency = self._latency("concurrent", self._groups(ending))
        else:
            latencies = [self._latency(*variant) for variant in self._space.variants(ending)]
            latency = min(latencies, default=math.inf)
        self[ending] = latency
        return latency

    def stage(self, ending: int) -> Stage:
        """The best variant of an ending; a merge wins a tie (IOS, Algorithm 1, line 30)."""
        best = min(self._space.variants(ending), key=lambda variant: self._latency(*variant))
        return self._space.stage(best, self._latency(*best))

    def _latency(self, strategy: Strategy, groups: tuple[int, ...]) -> float:
        key = self._key(groups, strategy)
        latency = self._latency_us.get(key)
        if latency is None:
            latency = self._memo.ask(key, self._space.stage((strategy, groups)))
        return latency
