"""Answers the planner's questions: from the store, else by measuring on the device.

planner ──StageQuery──> StageMeasurer ──known?──> store
                             └──no──> Measurer.measure_stage ──> store, unless disturbed
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import monotonic

from braid.core.measurement import StageLatency
from braid.core.precision import TF32
from braid.core.program import ProgramKey
from braid.server.jobs.interfaces import ServingDevice, StageQuery
from braid.server.jobs.progress import BatchSizeProgress
from braid.server.jobs.services import JobServices

ONE_THREAD = "@1"
"""Ends the stored signature of a unit measured on one thread."""


class StageMeasurer:
    """Answers the planner's questions: from the store, else by measuring, one stage at a time.

    A new latency is stored before the next stage is measured, so none is ever measured twice,
    by any job, whatever ends this one; unless the planner wants a fresh measurement, to tell
    two that are nearly equal. One that was measured while other processes had the cores serves
    this search only.
    """

    def __init__(
        self,
        program: ProgramKey,
        device: ServingDevice,
        services: JobServices,
        progress: BatchSizeProgress,
    ) -> None:
        self._program = program
        self._device = device
        self._store = services.store
        self._observer = services.observer
        self._progress = progress
        self._retry = services.retry(progress.retrying)
        self._samples: dict[str, list[float]] = {}  # by stored name
        self._disturbed_us: dict[str, float] = {}  # latencies that are not stored
        self._is_searching = False
        self.measured = 0
        self.disturbed = 0  # of the measured ones
        self.learned = 0  # of the measured ones, those whose latency was not stored before
        self.reused = 0

    async def measure(self, queries: Sequence[StageQuery]) -> Sequence[float]:
        """Latencies in microseconds, in the order of the queries."""
        key = self._device.device_key
        names = [self._stored_name(query) for query in queries]
        known = self._disturbed_us | await self._store.call(self._store.find_latencies, key, names)
        fresh = [
            query.ask == "again" or name not in known
            for query, name in zip(queries, names, strict=True)
        ]
        reused = fresh.count(False)
        self.reused += reused
        self._observer.stages_reused(self._device.name, reused)
        found: list[float] = []
        for query, name, is_fresh in zip(queries, names, fresh, strict=True):
            if self._is_searching:
                self._progress.searching(self.measured)
            else:
                self._progress.profiling(len(found), len(queries))
            found.append(
                await self._measure(query, name, known.get(name)) if is_fresh else known[name]
            )
        self._is_searching = True  # what is asked from now on depends on these answers
        self._progress.searching(self.measured)
        return found

    def _stored_name(self, query: StageQuery) -> str:
        name = in_store(query.signature, self._program.precision)
        return name + (ONE_THREAD if query.ask == "work" else "")

    async def _measure(self, query: StageQuery, name: str, known_us: float | None) -> float:
        """Measure, and store the latency unless it is disturbed."""
        began = monotonic()
        threads = 1 if query.ask == "work" else None
        timing = await self._retry(
            lambda: self._device.bench.measure_stage(self._program, query.stage, threads)
        )
        if timing.is_disturbed:
            self.disturbed += 1
            self._disturbed_us[name] = timing.latency_us
        else:
            await self._keep(name, timing, known_us)
        seconds = monotonic() - began
        self.measured += 1
        self.learned += known_us is None
        self._observer.stage_measured(self._device.name, seconds)
        return timing.latency_us

    async def _keep(self, name: str, timing: StageLatency, known_us: float | None) -> None:
        """Store the median of all samples that this job has of a stage."""
        stored_us = None if name in self._disturbed_us else known_us
        samples = self._samples.setdefault(name, [] if stored_us is None else [stored_us])
        samples.append(timing.latency_us)
        latency = StageLatency(
            median(samples),
            max(timing.spread, (max(samples) - min(samples)) / median(samples)),
            timing.repeats * len(samples),
        )
        self._disturbed_us.pop(name, None)
        await self._store.call(self._store.put_latency, self._device.device_key, name, latency)


def in_store(signature: str, precision: str) -> str:
    """Key that a stage is stored under: TF32 units have the signatures of FP32 ones."""
    return f"{signature}@{TF32}" if precision == TF32 else signature
