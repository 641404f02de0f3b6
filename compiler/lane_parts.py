"""Plans whose lanes each run a long part by themselves: branches of a graph, or rows of a batch.

    branches ──alone, by each engine──> balanced over lanes ──side by side──> plan, if it gains
    rows ────────divided over lanes──────────────────────────side by side──> plan, if it gains

A lane has one thread (or an equal part of the device's threads), in an engine or on own kernels.
Nobody waits inside. Lanes that compute at once slow each other, so what decides is always the time
of all lanes together; the log says how far that is from the longest lane alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from braid.compiler.part_latencies import PartStage, stage_latencies
from braid.compiler.stages import unit_latencies
from braid.compiler.work import Work
from braid.core.errors import InvalidArtefact, PreconditionFailed, Unavailable, WorkerFault
from braid.core.graph import OpGraph
from braid.core.plan import EnginePart, Launch, StreamPlan
from braid.core.precision import FP32
from braid.core.program import ProgramKey
from braid.core.schedule import Stage
from braid.scheduler.branches import balanced, find_branches
from braid.scheduler.planners import Planned
from braid.scheduler.regions import borders

log = logging.getLogger("braid.jobs")

BRANCHES, ROWS = "branches", "rows"
"""Names of the candidates."""

MOST_US = 1.15
"""A plan is compared if all of it takes at most so many times what own units one by one do."""


async def plans_on_lanes(
    work: Work, program: ProgramKey, graph: OpGraph, threads: int
) -> list[Planned]:
    """Measure branches and rows on lanes; the best plan of each kind, if one is to be compared.

    The program is on its chosen kernels; the latencies of the graph's units are in the cache.
    """
    versions = work.device.software
    engines = [name for name in work.runtimes(program.precision) if name in versions]
    if program.precision != FP32 or threads < 2:
        return []
    units_us = await unit_latencies(graph, work.cache, program.precision)
    work_us = [units_us.get(operator.name, 0.0) for operator in graph.operators]
    lanes = _Lanes(work, program, graph, threads, {"": "", **{e: versions[e] for e in engines}})
    try:
        found = [await lanes.by_branches(work_us), await lanes.by_rows(sum(work_us))]
    except (PreconditionFailed, InvalidArtefact, Unavailable, WorkerFault) as error:
        log.warning("no plan of lanes", extra={"reason": str(error)})
        return []
    return list(filter(None, found))


class _Lanes:
    def __init__(
        self,
        work: Work,
        program: ProgramKey,
        graph: OpGraph,
        threads: int,
        versions: dict[str, str],
    ) -> None:
        """``versions`` has what lanes can run in, own kernels first, under an empty name."""
        self._work = work
        self._program = program
        self._graph = graph
        self._threads = threads
        self._versions = versions

    async def by_branches(self, work_us: Sequence[float]) -> Planned | None:
        """The fastest plan that runs branches of the graph on a lane each."""
        graph = self._graph
        found = find_branches(graph, borders(graph, graph.sources), work_us, self._threads)
        if found is None:
            return None
        alone = [
            (self._part(units, engine),) for units in found.members for engine in self._versions
        ]
        latencies_us = await self._latencies(alone)
        by_engine = {
            engine: latencies_us[at :: len(self._versions)]
            for at, engine in enumerate(self._versions)
        }
        stages: list[PartStage] = []
        longest_us: list[float] = []
        for engine, branches_us in by_engine.items():
            loads_us = [us for us in branches_us if us is not None]
            if len(loads_us) == len(branches_us):
                lanes, loads_us = balanced(loads_us, self._threads)
                groups = [_joined(found.members, lane) for lane in lanes]
                stages.append(tuple(self._part(units, engine) for units in groups))
                longest_us.append(max(loads_us))
        together_us = await self._latencies(stages)
        named = [
            (stage[0].engine or "own", round(alone_us), us and round(us))
            for stage, alone_us, us in zip(stages, longest_us, together_us, strict=True)
        ]
        before, after = range(found.span.start), range(found.span.stop, len(graph))
        rest_us = [sum(work_us[unit] for unit in units) for units in (before, after)]
        facts = {"branches": [len(units) for units in found.members], "alone_together_us": named}
        log.info("branches measured", extra=facts)
        best = _fastest(stages, together_us)
        if best is None or best[1] + sum(rest_us) > MOST_US * sum(work_us):
            return None
        stage, us = best
        launches = [Launch(unit, 0) for unit in before]
        launches += [Launch(u, lane) for lane, part in enumerate(stage) for u in part.units]
        launches += [Launch(unit, 0) for unit in after]
        cuts = {found.span.start, found.span.stop} - {0, len(graph)}
        parts = tuple(part for part in stage if part.engine)
        plan = StreamPlan(tuple(launches), len(stage), tuple(sorted(cuts)), parts=parts)
        beside = tuple(part.units for part in stage)
        around = [(tuple(units),) if units else () for units in (before, after)]
        stages_us = zip((around[0], beside, around[1]), (rest_us[0], us, rest_us[1]), strict=True)
        shown = tuple(Stage(groups, latency_us=took) for groups, took in stages_us if groups)
        return Planned(BRANCHES, plan, shown, us + sum(rest_us))

    async def by_rows(self, sequential_us: float) -> Planned | None:
        """The fastest plan that divides the rows of a batch over lanes.

        All lanes run in one engine: the one that is best on most rows needs less time on fewer.
        """
        batch, rows = self._work.imported.report.batch, self._work.batch_size
        lanes = min(self._threads, rows)
        if batch is None or batch.alone or {*batch.outputs.values()} != {0}:
            return None  # rows may depend on each other
        if rows < 2 or self._threads % lanes:
            return None
        shares = [rows // lanes + (lane < rows % lanes) for lane in range(lanes)]
        stages = [self._divided(shares, engine) for engine in self._versions]
        latencies_us = await self._latencies(stages)
        named = [
            (stage[0].engine or "own", us and round(us))
            for us, stage in zip(latencies_us, stages, strict=True)
        ]
        log.info("rows measured", extra={"rows": shares, "together_us": named})
        best = _fastest(stages, latencies_us)
        if best is None or (sequential_us and best[1] > MOST_US * sequential_us):
            return None
        units = tuple(range(len(self._graph)))
        plan = StreamPlan(tuple(Launch(unit, 0) for unit in units), 1, parts=best[0])
        return Planned(ROWS, plan, (Stage((units,), latency_us=best[1]),), best[1])

    def _part(self, units: tuple[int, ...], engine: str) -> EnginePart:
        return EnginePart(units, engine, self._versions[engine], 1)

    def _divided(self, shares: Sequence[int], engine: str) -> PartStage:
        units, threads = tuple(range(len(self._graph))), self._threads // len(shares)
        return tuple(
            EnginePart(units, engine, self._versions[engine], threads, rows) for rows in shares
        )

    async def _latencies(self, stages: Sequence[PartStage]) -> list[float | None]:
        return await stage_latencies(self._work, self._program, self._graph, stages)


def _joined(members: Sequence[tuple[int, ...]], lane: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(unit for at in lane for unit in members[at]))


def _fastest(
    stages: Sequence[PartStage], latencies_us: Sequence[float | None]
) -> tuple[PartStage, float] | None:
    ran = [(us, at) for at, us in enumerate(latencies_us) if us is not None]
    if not ran:
        return None
    us, at = min(ran)
    return stages[at], us
