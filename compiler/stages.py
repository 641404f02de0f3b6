"""Latencies of a program's stages and parts: from the cache, else measured on the device."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from math import inf
from time import monotonic

from braid.compiler.device import Device, measure
from braid.compiler.planner_messages import StageQuery
from braid.compiler.report import Profiling, Report, Searching, StageMeasured, StagesReused
from braid.compiler.results import Cache
from braid.compiler.retries import RetryWhileRestarting
from braid.core.errors import InvalidArtefact, PreconditionFailed, Unavailable, WorkerFault
from braid.core.graph import OpGraph
from braid.core.measurement import StageLatency
from braid.core.precision import TF32
from braid.core.program import ProgramKey
from braid.core.schedule import Stage
from braid.engine.link.messages import MeasureParts, MeasureStage
from braid.scheduler.signature import stage_signature
from braid.scheduler.units import UnitGraph

log = logging.getLogger("braid.jobs")

ONE_THREAD = "@1"
"""Ends the cached signature of a unit measured on one thread."""


class StageMeasurer:
    """Answers the questions of one search, over all its tries, one stage at a time.

    A new latency is kept before the next stage is measured, so none is ever measured twice, by any
    compilation, whatever ends this one.
    """

    def __init__(
        self,
        program: ProgramKey,
        device: Device,
        cache: Cache,
        report: Report,
        retry: RetryWhileRestarting,
    ) -> None:
        self._program = program
        self._device = device
        self._cache = cache
        self._report = report
        self._retry = retry
        self._is_searching = False
        self._known_us: dict[str, float] = {}  # by cached name, as all that follows
        self.measured = 0
        self.reused = 0

    async def measure(self, queries: Sequence[StageQuery]) -> Sequence[float]:
        """Latencies in microseconds, in the order of the queries; infinite: a part is refused."""
        names = [self._name(query) for query in queries]
        self._known_us.update(await self._cache.find_latencies(names))
        if any(query.parts for query in queries):
            return await self._of_parts(dict(zip(names, queries, strict=True)))
        known = sum(name in self._known_us for name in names)
        self.reused += known
        self._report(StagesReused(known))
        for number, (query, name) in enumerate(zip(queries, names, strict=True)):
            if self._is_searching:
                self._report(Searching(self.measured))
            else:
                self._report(Profiling(number, len(queries)))
            if name not in self._known_us:
                await self._measure(query, name)
        self._is_searching = True  # what is asked from now on depends on these answers
        self._report(Searching(self.measured))
        return [self._known_us[name] for name in names]

    async def _measure(self, query: StageQuery, name: str) -> None:
        began = monotonic()
        request = MeasureStage(self._program, query.stage, 1 if query.ask == "work" else None)
        latency = await self._retry(lambda: measure(self._device, request))
        self.measured += 1
        self._known_us[name] = latency.latency_us
        await self._cache.keep_latencies({name: latency})
        self._report(StageMeasured(monotonic() - began))

    async def _of_parts(self, queries: Mapping[str, StageQuery]) -> list[float]:
        """Latencies of parts in microseconds; infinite where one is refused.

        That is not kept: another version of Braid may cut it otherwise. A device that dies of
        them, or cannot read the model's file, costs the plans that have them and no other.
        """
        missing = {name: query for name, query in queries.items() if name not in self._known_us}
        if missing:
            request = MeasureParts(self._program, tuple(query.parts for query in missing.values()))
            try:
                measured = (await self._device.ask(request)).stages
            except (PreconditionFailed, InvalidArtefact, Unavailable, WorkerFault) as error:
                log.warning("no parts are measured", extra={"reason": str(error)})
                return [inf] * len(queries)
            told, kept = [], dict[str, StageLatency]()
            for (name, query), outcome in zip(missing.items(), measured, strict=True):
                if (us := outcome.latency_us) is not None:
                    self._known_us[name], kept[name] = us, StageLatency(us, 0.0, 1)
                units, who = [len(p.units) for p in query.parts], name.partition(" in ")[2]
                told.append((units, who, outcome.problem if us is None else round(us)))
            log.info("parts measured", extra={"units_who_us": told})
            await self._cache.keep_latencies(kept)
        return [self._known_us.get(name, inf) for name in queries]

    def _name(self, query: StageQuery) -> str:
        """Signature that the answer to a query is cached under."""
        name = in_cache(query.signature, self._program.precision)
        return name + (ONE_THREAD if query.ask == "work" else "")


def in_cache(signature: str, precision: str) -> str:
    """Key that a stage is cached under: TF32 units have the signatures of FP32 ones."""
    return f"{signature}@{TF32}" if precision == TF32 else signature


async def unit_latencies(graph: OpGraph, cache: Cache, precision: str) -> dict[str, float]:
    """Known latencies of units alone in microseconds, by unit name, to be shown."""

    def signatures() -> dict[str, str]:
        units = UnitGraph.from_graph(graph)
        return {
            operator.name: in_cache(stage_signature(units, Stage(((index,),))), precision)
            for index, operator in enumerate(graph.operators)
        }

    named = await asyncio.to_thread(signatures)
    known_us = await cache.find_latencies(list(set(named.values())))
    return {name: known_us[mark] for name, mark in named.items() if mark in known_us}
