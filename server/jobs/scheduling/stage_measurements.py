"""Answers the planner's questions: from the store, else by measuring on the device.

planner ──StageQuery──> StageMeasurer ──known?──> store
                             └──no──> Measurer.measure_stage ──> store
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
    two that are nearly equal.
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
        self._is_searching = False
        self.measured = 0
        self.learned = 0  # of the measured ones, those whose latency was not stored before
        self.reused = 0

    async def measure(self, queries: Sequence[StageQuery]) -> Sequence[float]:
        """Latencies in microseconds, in the order of the queries."""
        key = self._device.device_key
        names = [self._stored_name(query) for query in queries]
        known = await self._store.call(self._store.find_latencies, key, names)
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
        """Measure, and store the median of all samples that this job has of the stage."""
        began = monotonic()
        threads = 1 if query.ask == "work" else None
        timing = await self._retry(
            lambda: self._device.bench.measure_stage(self._program, query.stage, threads)
        )
        stored = self._samples.setdefault(name, [] if known_us is None else [known_us])
        stored.append(timing.latency_us)
        latency = StageLatency(
            median(stored),
            max(timing.spread, (max(stored) - min(stored)) / median(stored)),
            timing.repeats * len(stored),
        )
        await self._store.call(self._store.put_latency, self._device.device_key, name, latency)
        seconds = monotonic() - began
        self.measured += 1
        self.learned += known_us is None and len(stored) == 1
        self._observer.stage_measured(self._device.name, seconds)
        return timing.latency_us


def in_store(signature: str, precision: str) -> str:
    """Key that a stage is stored under: TF32 units have the signatures of FP32 ones."""
    return f"{signature}@{TF32}" if precision == TF32 else signature
