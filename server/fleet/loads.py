"""Loading what other nodes made serve: several at a time, again after a failure, until unwanted.

A load that failed is tried again after longer and longer pauses, or at once for other bytes.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import monotonic

from braid.compiler.retries import PAUSES_S, RetryPauses
from braid.core.errors import Unavailable
from braid.server.jobs.services import JobServices
from braid.server.models.restore import Restore
from braid.server.models.serving_models import ServingModels
from braid.server.store.records import ModelStatus, ModelVersion

log = logging.getLogger("braid.fleet")

TRIES = 3
"""Tries of a device that restarts, within one load."""

AGAIN_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Seconds after which a load that failed is tried again, by the number of failures before."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """Loads of one version that failed one after the other."""

    row: ModelVersion
    count: int
    again_at: float  # on the clock
    is_passing: bool  # the files, the database or the device were away


class Loads:
    """Loads of stored model versions. Belongs to the event loop."""

    def __init__(
        self,
        services: JobServices,
        models: ServingModels,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Begin nothing yet; ``clock`` counts seconds."""
        self.services = replace(services, retry_pauses=RetryPauses(PAUSES_S[:TRIES]))
        self._restore = Restore(self.services, models, is_shared=True)
        self._models = models
        self._clock = clock
        self._running: dict[tuple[str, int], tuple[ModelVersion, asyncio.Task[None]]] = {}
        self._failures: dict[tuple[str, int], _Failure] = {}

    def is_due(self, row: ModelVersion) -> bool:
        """True if a version that does not answer is to be loaded now."""
        failure = self._failure(row)
        return failure is None or self._clock() >= failure.again_at

    def is_delayed(self, row: ModelVersion) -> bool:
        """True if the last load failed because the files or the device were away."""
        failure = self._failure(row)
        return failure is not None and failure.is_passing

    @property
    def next_s(self) -> float | None:
        """Seconds until a load that failed is to be tried again; None: none waits for that."""
        waiting = self._failures.keys() - self._running.keys()
        times = [self._failures[key].again_at for key in waiting]
        return max(0.0, min(times) - self._clock()) if times else None

    def keep(self, stored: Mapping[str, Mapping[int, ModelVersion]]) -> None:
        """Cancel the loads of versions that are not to answer any more; forget their failures."""

        def is_wanted(row: ModelVersion) -> bool:
            now = stored.get(row.name, {}).get(row.version)
            return now is not None and now.state is ModelStatus.SERVING and now.is_same(row)

        for row, task in self._running.values():
            if not is_wanted(row):
                task.cancel()
        for key, failure in list(self._failures.items()):
            if not is_wanted(failure.row) or self._answers(failure.row):
                del self._failures[key]

    async def load(self, row: ModelVersion) -> None:
        """Let a version answer here; returns once it does, fails for now, or is no longer wanted.

        Until then it goes on answering with what it has.
        """
        if self._models.served_version(row.name, row.version) is None:
            self._models.register(row)
        else:
            self._models.replacing(row)
        key = (row.name, row.version)
        task = asyncio.create_task(self._load(row), name=f"load-{row.name}-{row.version}")
        self._running[key] = row, task
        try:
            await asyncio.wait([task])
        finally:
            del self._running[key]
            task.cancel()
            await asyncio.wait([task])
            self._models.give_up(row)

    async def _load(self, row: ModelVersion) -> None:
        """Load a version, and note a failure: schedules are looked at by themselves."""
        problem = await self._restore.serve_stored(row)
        if problem is None:
            self._failures.pop((row.name, row.version), None)
            log.info("serves as on other nodes", extra={"model": row.name, "version": row.version})
        elif not self._answers(row):
            before = self._failure(row)
            count = 0 if before is None else before.count
            again_at = self._clock() + AGAIN_S[min(count, len(AGAIN_S) - 1)]
            is_passing = isinstance(problem, Unavailable)
            failure = _Failure(row, count + 1, again_at, is_passing)
            self._failures[row.name, row.version] = failure

    def _failure(self, row: ModelVersion) -> _Failure | None:
        failure = self._failures.get((row.name, row.version))
        return failure if failure is not None and failure.row.is_same(row) else None

    def _answers(self, row: ModelVersion) -> bool:
        replicas = self._models.served_version(row.name, row.version)
        return replicas is not None and replicas.any.model.is_same(row)
