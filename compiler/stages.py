"""Latencies of a program's stages: from the cache, else measured on the device.

A bench that searches by itself answers from ``StageLatencies`` alone (process.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from statistics import median
from time import monotonic

from braid.compiler.cache import Cache
from braid.compiler.device import Device, measure
from braid.compiler.planner_messages import StageQuery
from braid.compiler.report import Profiling, Report, Searching, StageMeasured, StagesReused
from braid.compiler.retries import RetryWhileRestarting
from braid.core.graph import OpGraph
from braid.core.measurement import StageLatency
from braid.core.precision import TF32
from braid.core.program import ProgramKey
from braid.core.schedule import Stage
from braid.engine.link.messages import MeasureStage
from braid.scheduler.signature import stage_signature
from braid.scheduler.units import UnitGraph

ONE_THREAD = "@1"
"""Ends the cached signature of a unit measured on one thread."""


class StageLatencies:
    """Latencies of stages in microseconds: cached ones, and those measured in one search.

    None is measured twice, unless the planner wants a fresh measurement, to tell two that are
    nearly equal.
    """

    def __init__(self, precision: str, cached_us: Mapping[str, float] | None = None) -> None:
        self._precision = precision
        self._cached_us = dict(cached_us or {})
        self._samples: dict[str, list[float]] = {}  # by cached name
        self.measured = 0
        self.learned = 0  # of the measured ones, those whose latency was not cached before
        self.reused = 0

    def name(self, query: StageQuery) -> str:
        """Signature that the answer to a query is cached under."""
        name = in_cache(query.signature, self._precision)
        return name + (ONE_THREAD if query.ask == "work" else "")

    def look_up(self, cached_us: Mapping[str, float]) -> None:
        self._cached_us.update(cached_us)

    def known_us(self, name: str) -> float | None:
        return self._cached_us.get(name)

    def to_measure(self, queries: Sequence[StageQuery]) -> list[bool]:
        """Whether each query of a question takes a measurement; counts those that do not."""
        fresh = [
            query.ask == "again" or self.known_us(self.name(query)) is None for query in queries
        ]
        self.reused += fresh.count(False)
        return fresh

    def learn(self, name: str, timing: StageLatency) -> StageLatency:
        """Take a measurement; returns what is to be cached.

        That is the median of all samples that this search has of the stage.
        """
        known_us = self.known_us(name)
        self.measured += 1
        self.learned += known_us is None
        samples = self._samples.setdefault(name, [] if known_us is None else [known_us])
        samples.append(timing.latency_us)
        latency = StageLatency(
            median(samples),
            max(timing.spread, (max(samples) - min(samples)) / median(samples)),
            timing.repeats * len(samples),
        )
        self._cached_us[name] = latency.latency_us
        return latency


class StageMeasurer:
    """Answers the planner's questions, one stage at a time.

    A new latency is kept before the next stage is measured, so none is ever measured twice,
    by any compilation, whatever ends this one.
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
        self.latencies = StageLatencies(program.precision)

    async def measure(self, queries: Sequence[StageQuery]) -> Sequence[float]:
        """Latencies in microseconds, in the order of the queries."""
        latencies = self.latencies
        names = [latencies.name(query) for query in queries]
        latencies.look_up(await self._cache.find_latencies(names))
        fresh = latencies.to_measure(queries)
        self._report(StagesReused(fresh.count(False)))
        latencies_us: list[float] = []
        for query, name, is_fresh in zip(queries, names, fresh, strict=True):
            if self._is_searching:
                self._report(Searching(latencies.measured))
            else:
                self._report(Profiling(len(latencies_us), len(queries)))
            latency_us = None if is_fresh else latencies.known_us(name)
            if latency_us is None:
                latency_us = await self._measure(query, name)
            latencies_us.append(latency_us)
        self._is_searching = True  # what is asked from now on depends on these answers
        self._report(Searching(latencies.measured))
        return latencies_us

    async def _measure(self, query: StageQuery, name: str) -> float:
        began = monotonic()
        request = stage_request(self._program, query)
        timing = await self._retry(lambda: measure(self._device, request))
        await self._cache.keep_latencies({name: self.latencies.learn(name, timing)})
        self._report(StageMeasured(monotonic() - began))
        return timing.latency_us


def stage_request(program: ProgramKey, query: StageQuery) -> MeasureStage:
    return MeasureStage(program, query.stage, 1 if query.ask == "work" else None)


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
