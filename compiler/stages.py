"""Answers the planner's questions: from the cache, else by measuring on the device.

planner ──StageQuery──> StageMeasurer ──known?──> cache
                             └──no──> device.ask(MeasureStage) ──> cache, unless disturbed
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import monotonic

from braid.compiler.cache import Cache
from braid.compiler.device import Device, measure
from braid.compiler.planner_messages import StageQuery
from braid.compiler.report import Profiling, Report, Searching, StageMeasured, StagesReused
from braid.compiler.retries import RetryWhileRestarting
from braid.core.measurement import StageLatency
from braid.core.precision import TF32
from braid.core.program import ProgramKey
from braid.engine.link.messages import MeasureStage

ONE_THREAD = "@1"
"""Ends the cached signature of a unit measured on one thread."""


class StageMeasurer:
    """Answers the planner's questions: from the cache, else by measuring, one stage at a time.

    A new latency is kept before the next stage is measured, so none is ever measured twice,
    by any job, whatever ends this one; unless the planner wants a fresh measurement, to tell
    two that are nearly equal. One that was measured while other processes had the cores serves
    this search only.
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
        self._samples: dict[str, list[float]] = {}  # by cached name
        self._disturbed_us: dict[str, float] = {}  # latencies that are not kept
        self._is_searching = False
        self.measured = 0
        self.disturbed = 0  # of the measured ones
        self.learned = 0  # of the measured ones, those whose latency was not cached before
        self.reused = 0

    async def measure(self, queries: Sequence[StageQuery]) -> Sequence[float]:
        """Latencies in microseconds, in the order of the queries."""
        names = [self._cached_name(query) for query in queries]
        cached_us = await self._cache.find_latencies(names)
        known_us = {**cached_us, **self._disturbed_us}
        fresh = [
            query.ask == "again" or name not in known_us
            for query, name in zip(queries, names, strict=True)
        ]
        reused = fresh.count(False)
        self.reused += reused
        self._report(StagesReused(reused))
        latencies_us: list[float] = []
        for query, name, is_fresh in zip(queries, names, fresh, strict=True):
            if self._is_searching:
                self._report(Searching(self.measured))
            else:
                self._report(Profiling(len(latencies_us), len(queries)))
            latencies_us.append(
                await self._measure(query, name, known_us.get(name)) if is_fresh else known_us[name]
            )
        self._is_searching = True  # what is asked from now on depends on these answers
        self._report(Searching(self.measured))
        return latencies_us

    def _cached_name(self, query: StageQuery) -> str:
        name = in_cache(query.signature, self._program.precision)
        return name + (ONE_THREAD if query.ask == "work" else "")

    async def _measure(self, query: StageQuery, name: str, known_us: float | None) -> float:
        """Measure, and keep the latency unless it is disturbed."""
        began = monotonic()
        threads = 1 if query.ask == "work" else None
        request = MeasureStage(self._program, query.stage, threads)
        timing = await self._retry(lambda: measure(self._device, request))
        if timing.is_disturbed:
            self.disturbed += 1
            self._disturbed_us[name] = timing.latency_us
        else:
            await self._keep(name, timing, known_us)
        seconds = monotonic() - began
        self.measured += 1
        self.learned += known_us is None
        self._report(StageMeasured(seconds))
        return timing.latency_us

    async def _keep(self, name: str, timing: StageLatency, known_us: float | None) -> None:
        """Keep the median of all samples that this compilation has of a stage."""
        cached_us = None if name in self._disturbed_us else known_us
        samples = self._samples.setdefault(name, [] if cached_us is None else [cached_us])
        samples.append(timing.latency_us)
        latency = StageLatency(
            median(samples),
            max(timing.spread, (max(samples) - min(samples)) / median(samples)),
            timing.repeats * len(samples),
        )
        self._disturbed_us.pop(name, None)
        await self._cache.keep_latencies({name: latency})


def in_cache(signature: str, precision: str) -> str:
    """Key that a stage is cached under: TF32 units have the signatures of FP32 ones."""
    return f"{signature}@{TF32}" if precision == TF32 else signature
