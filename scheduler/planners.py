"""Entry points: make a plan, or say beforehand which stages will be measured for it.

graph ──split_blocks──> blocks ──find_schedule──> stages ──lower_stages──> StreamPlan
                           └── equal blocks are solved once
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from core.graph import OpGraph
from core.plan import StreamPlan, sequential_plan
from core.schedule import Stage
from scheduler.blocks import split_blocks
from scheduler.cost import MergeRule, StageCost
from scheduler.dag import Dag
from scheduler.endings import Endings
from scheduler.ios import find_schedule
from scheduler.lowering import lower_stages
from scheduler.options import PlannerOptions
from scheduler.signature import block_signature
from scheduler.stages import StageMemo, StageTable
from scheduler.units import UnitGraph, as_units


@dataclass(frozen=True, slots=True)
class SearchCounts:
    """How much a search looked at. Sums over the distinct blocks."""

    operators: int
    states: int = 0
    transitions: int = 0  # pairs (S, E), IOS section 4.2
    stages_measured: int = 0  # distinct stages asked from the cost


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan and what is known about it."""

    stages: tuple[Stage, ...]  # empty for planners that make stream plans without stages
    plan: StreamPlan
    predicted_us: float
    counts: SearchCounts
    search_seconds: float  # without the time spent measuring


def plan(
    graph: OpGraph | UnitGraph,
    cost: StageCost,
    options: PlannerOptions,
    merge: MergeRule | None = None,
) -> Planned:
    """Plan a static graph.

    Raises:
        SearchTooLarge: a block has too many states for the exact search.
    """
    started = time.perf_counter()
    units = as_units(graph)
    search = _Search(units, StageMemo(cost), options, merge)
    stages = search.sequential() if options.planner == "sequential" else search.ios()
    lowered = _lower(units, stages, options)
    return Planned(
        stages=tuple(stages),
        plan=lowered,
        predicted_us=sum(stage.latency_us or 0.0 for stage in stages),
        counts=search.counts(),
        search_seconds=time.perf_counter() - started - search.memo.asking_seconds,
    )


def stages_to_measure(
    graph: OpGraph | UnitGraph, options: PlannerOptions, merge: MergeRule | None = None
) -> list[Stage]:
    """The stages whose latency ``plan`` will ask for: one per distinct signature."""
    units = as_units(graph)
    recorder = _Recorder()
    search = _Search(units, StageMemo(recorder), options, merge)
    if options.planner == "sequential":
        search.sequential()
    else:
        search.ask_for_every_stage()
    return recorder.asked


def _lower(units: UnitGraph, stages: Sequence[Stage], options: PlannerOptions) -> StreamPlan:
    if options.planner == "sequential":
        return sequential_plan(len(units))
    return lower_stages(stages, units.predecessors, max_streams=options.max_streams)


class _Recorder:
    """A cost that answers at once and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Stage] = []

    def stage_latency_us(self, stage: Stage) -> float:
        self.asked.append(stage)
        return 1.0


class _Search:
    """One search over one graph: the blocks, and the stage latencies they share."""

    def __init__(
        self,
        units: UnitGraph,
        memo: StageMemo,
        options: PlannerOptions,
        merge: MergeRule | None,
    ) -> None:
        self.memo = memo
        self._units = units
        self._options = options
        self._merge = merge
        self._states = 0
        self._transitions = 0

    def sequential(self) -> list[Stage]:
        """Each unit alone, in the order of the graph."""
        stages: list[Stage] = []
        for unit in range(len(self._units)):
            _, table = self._open((unit,))
            stages.append(table.stage(1))
        return stages

    def ios(self) -> list[Stage]:
        """The exact optimum of each block."""
        stages: list[Stage] = []
        solved: dict[str, list[int]] = {}
        for block in split_blocks(self._units, self._options.max_block_ops):
            endings, table = self._open(block)
            text = block_signature(self._units.restrict(block))
            if text not in solved:
                solved[text] = find_schedule(endings, table, (1 << len(block)) - 1)
                self._count(endings)
            stages += [table.stage(ending) for ending in solved[text]]
        return stages

    def ask_for_every_stage(self) -> None:
        """Ask the cost for each stage that ``ios`` would ask for."""
        for endings, table in self._distinct_blocks():
            for state in endings.states:
                for ending in endings.of(state):
                    table[ending]

    def counts(self) -> SearchCounts:
        """What was looked at so far."""
        return SearchCounts(
            operators=len(self._units),
            states=self._states,
            transitions=self._transitions,
            stages_measured=len(self.memo.latency_us),
        )

    def _distinct_blocks(self) -> Iterator[tuple[Endings, StageTable]]:
        seen: set[str] = set()
        for block in split_blocks(self._units, self._options.max_block_ops):
            text = block_signature(self._units.restrict(block))
            if text not in seen:
                seen.add(text)
                yield self._open(block)

    def _open(self, block: Sequence[int]) -> tuple[Endings, StageTable]:
        local = self._units.restrict(block)
        options = self._options
        endings = Endings(
            Dag.of(local.predecessors),
            options.max_group_ops,
            options.max_groups,
            options.single_root,
        )
        return endings, StageTable(endings, local, block, self.memo, self._merge)

    def _count(self, endings: Endings) -> None:
        states = list(endings.states)
        self._states += len(states)
        self._transitions += sum(len(endings.of(state)) for state in states)
