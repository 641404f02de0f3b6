"""Latencies of parts of a model in engines, alone or side by side: from the cache, or measured.

A part that an engine refuses is not kept: another version of Braid may cut it otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from braid.compiler.work import Work
from braid.core.graph import OpGraph
from braid.core.measurement import StageLatency
from braid.core.plan import EnginePart
from braid.core.program import ProgramKey
from braid.core.schedule import Stage
from braid.engine.link.messages import MeasureParts
from braid.scheduler.signature import stage_signature
from braid.scheduler.units import UnitGraph

log = logging.getLogger("braid.jobs")

PartStage = tuple[EnginePart, ...]
"""Parts that run side by side."""


async def stage_latencies(
    work: Work, program: ProgramKey, graph: OpGraph, stages: Sequence[PartStage]
) -> list[float | None]:
    """Latencies of stages in microseconds; None of one that has a part which is refused.

    Stages with own kernels only come before others of the same units. Raises BraidError: the device
    does not answer, or the model's file cannot be read.
    """
    names = await asyncio.to_thread(lambda: _names(graph, stages))
    known_us = await work.cache.find_latencies(names)
    missing = [stage for stage, name in zip(stages, names, strict=True) if name not in known_us]
    latencies_us: dict[str, float | None] = dict(known_us)
    if missing:
        measured = (await work.device.ask(MeasureParts(program, tuple(missing)))).stages
        fresh = [name for name in names if name not in known_us]
        for stage, name, outcome in zip(missing, fresh, measured, strict=True):
            latencies_us[name] = outcome.latency_us
            if outcome.problem:
                engines = sorted({part.engine for part in stage})
                facts = {"engines": engines, "units": len(stage[0].units)}
                log.info("a part is refused: %s", outcome.problem, extra=facts)
        kept = {
            name: StageLatency(outcome.latency_us, 0.0, 1)
            for name, outcome in zip(fresh, measured, strict=True)
            if outcome.latency_us is not None
        }
        if kept:
            await work.cache.keep_latencies(kept)
    return [latencies_us[name] for name in names]


def _names(graph: OpGraph, stages: Sequence[PartStage]) -> list[str]:
    """Names in the cache: what the device computes, and who on how many threads and rows."""
    units = UnitGraph.from_graph(graph)
    signatures: dict[tuple[tuple[int, ...], ...], str] = {}
    names = []
    for stage in stages:
        groups = tuple(dict.fromkeys(part.units for part in stage))
        if groups not in signatures:
            signatures[groups] = stage_signature(units, Stage(groups))
        who = [f"{p.engine or 'own'} {p.version}@{p.threads}x{p.rows}" for p in stage]
        names.append(f"{signatures[groups]} in {', '.join(who)}")
    return names
