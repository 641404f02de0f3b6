"""A plan whose regions run in the engine that is fastest for each, as one more candidate.

The parts are measured as stages are, one by one, and in each engine the longest row of regions in
which it is fast: what that takes less than its regions, it saves at borders that it need not know.
What the plan takes as a whole is measured in the comparison, which checks its outputs, too. A
device that dies of a part, or refuses to read the model's file, costs this candidate and no other.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from braid.compiler.part_latencies import stage_latencies
from braid.compiler.stages import unit_latencies
from braid.compiler.work import Work
from braid.core.errors import InvalidArtefact, PreconditionFailed, Unavailable, WorkerFault
from braid.core.graph import OpGraph
from braid.core.margins import PART_GAIN
from braid.core.plan import EnginePart, Launch, StreamPlan
from braid.core.precision import FP32
from braid.core.program import ProgramKey
from braid.core.runtimes import RUNTIMES
from braid.core.schedule import Schedule, Stage
from braid.scheduler.planners import Planned
from braid.scheduler.regions import (
    BYTES_PER_US,
    Choice,
    borders,
    cheapest,
    least_of_one,
    regions,
    runs_of,
)

log = logging.getLogger("braid.jobs")

PLANNER = "regions"

CALL_US = 30.0
"""What a call of an engine costs beside its work, about, where it is not measured."""


ONE_THREAD_US = 400.0
"""A region that takes longer on all threads is not tried on one."""

NEAR = 1.3
"""An engine that takes so much longer than the fastest of a region has no part in it, about."""


async def plan_of_regions(
    work: Work, program: ProgramKey, graph: OpGraph, threads: int
) -> Planned | None:
    """Measure regions in each engine; None: no mixed plan is expected to be faster.

    The program is on its chosen kernels; the latencies of the graph's units are in the cache.
    """
    engines = work.runtimes(program.precision)
    versions = work.device.software
    if program.precision != FP32 or not graph.sources or not set(engines) <= set(versions):
        return None
    units_us = await unit_latencies(graph, work.cache, program.precision)
    work_us = [units_us.get(operator.name, 0.0) for operator in graph.operators]
    at = borders(graph, graph.sources)
    parts = regions(graph, at, work_us)
    if len(parts) < 2 or not engines:
        return None

    wide = [Choice(engine, threads) for engine in engines]

    def part(span: range, choice: Choice) -> EnginePart:
        version = versions[choice.engine] if choice.engine else ""
        return EnginePart(tuple(span), choice.engine, version, choice.threads)

    async def measured(
        spans: Sequence[range], choices: Sequence[Sequence[Choice]]
    ) -> list[dict[Choice, float]]:
        pairs = zip(spans, choices, strict=True)
        asked = [[part(span, choice) for choice in some] for span, some in pairs]
        return await _measured(work, program, graph, asked)

    try:
        costs = await measured(parts, [[Choice("", threads), *wide]] * len(parts))
        runs = {choice: run for choice in wide if (run := _near_run(costs, choice))}
        if not runs:
            return None
        one_thread = [_worth_one_thread(us) if threads > 1 else [] for us in costs]
        narrow = await measured(parts, one_thread)
        joined = [range(parts[run[0]].start, parts[run[-1]].stop) for run in runs.values()]
        together = await measured(joined, [[choice] for choice in runs])
    except (PreconditionFailed, InvalidArtefact, Unavailable, WorkerFault) as error:
        log.warning("no plan of regions", extra={"reason": str(error)})
        return None
    saved_us = {
        choice: max(0.0, sum(costs[at][choice] for at in run) - us[choice]) / (len(run) - 1)
        for (choice, run), us in zip(runs.items(), together, strict=True)
        if len(run) > 1 and choice in us
    }
    costs = [{**us, **others} for us, others in zip(costs, narrow, strict=True)]

    def price_us(region: int, before: Choice, after: Choice) -> float:
        if before == after:
            return -saved_us.get(after, CALL_US) if after.engine else 0.0
        is_own = not (before.engine and after.engine)
        return at[parts[region].start] / BYTES_PER_US if is_own else 0.0

    path, predicted_us = cheapest(costs, price_us)
    named = [{f"{c.engine or 'own'}@{c.threads}": round(us) for c, us in r.items()} for r in costs]
    facts = {
        "regions": [len(span) for span in parts],
        "us": named,
        "chosen": [f"{choice.engine or 'own'}@{choice.threads}" for choice in path],
        "predicted_us": round(predicted_us),
    }
    log.info("regions measured", extra=facts)
    if len(set(path)) == 1 or predicted_us > (1 - PART_GAIN) * least_of_one(costs, price_us):
        return None
    launches = tuple(Launch(unit, 0) for unit in range(len(graph)))
    runs_us = runs_of(parts, path, costs, price_us)
    delegated = [part(span, choice) for span, choice, _ in runs_us if choice.engine]
    plan = StreamPlan(launches, 1, parts=tuple(delegated))
    stages = tuple(Stage((tuple(span),), latency_us=us) for span, _, us in runs_us)
    return Planned(PLANNER, plan, stages, predicted_us)


def _is_near(us: float, costs: Mapping[Choice, float]) -> bool:
    return us <= NEAR * min(costs.values())


def _worth_one_thread(costs: Mapping[Choice, float]) -> list[Choice]:
    """Engines on one thread that may be the fastest of a region, by costs on all threads."""
    if min(costs.values()) > ONE_THREAD_US:
        return []
    return [Choice(c.engine, 1) for c, us in costs.items() if c.engine and _is_near(us, costs)]


def _near_run(costs: Sequence[Mapping[Choice, float]], choice: Choice) -> range:
    """The longest row of regions in which an engine is near the fastest; may be empty."""
    longest, start = range(0), 0
    for at, us in enumerate(costs):
        if choice not in us or not _is_near(us[choice], us):
            start = at + 1
        longest = max(longest, range(start, at + 1), key=len)
    return longest


async def _measured(
    work: Work, program: ProgramKey, graph: OpGraph, asked: Sequence[Sequence[EnginePart]]
) -> list[dict[Choice, float]]:
    """Latencies of parts in microseconds, by region and who runs it; without those refused."""
    parts = [part for region in asked for part in region]
    latencies_us = await stage_latencies(work, program, graph, [(part,) for part in parts])
    by_part = dict(zip(parts, latencies_us, strict=True))
    return [
        {
            Choice(part.engine, part.threads): latency_us
            for part in region
            if (latency_us := by_part[part]) is not None
        }
        for region in asked
    ]


def with_present_engines(schedule: Schedule, software: Mapping[str, str]) -> Schedule:
    """The schedule; asked for again if an engine of one of its parts is gone or another version."""
    for part in schedule.plan.parts:
        present = software.get(part.engine, "")
        if present != part.version and not schedule.is_asked:
            name = RUNTIMES.get(part.engine, part.engine)
            now = f"{name} is {present}" if present else f"{name} is gone"
            why = f"a part of it ran in {name} {part.version}, and {now}"
            return replace(schedule, provenance=replace(schedule.provenance, again=why))
    return schedule
