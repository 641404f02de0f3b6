"""Ends of jobs: stored before anyone sees them, once, and only by the server that has the job.

On one machine, an end that the disk does not take is shown, and stored when the disk takes it; a
crash before that lets the job go on. Where several servers share the store, an end is shown once
it is stored; a server that lost the job stores none.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace

from braid.compiler.progress import UNKNOWN
from braid.core.background import log_failure
from braid.core.errors import DiskFailure, ResourceExhausted, TakenOver
from braid.server.jobs.live_jobs import LiveJob
from braid.server.jobs.services import JobServices
from braid.server.store.records import JobRecord, JobStatus, ModelVersion

log = logging.getLogger("braid.jobs")


def ended(before: JobRecord, state: JobStatus, message: str) -> JobRecord:
    return replace(
        before,
        state=state,
        progress=1.0 if state is JobStatus.READY else before.progress,
        detail="",
        eta_seconds=0.0 if state is JobStatus.READY else UNKNOWN,
        message=message,
        updated_unix=time.time(),
    )


class JobEnds:
    """Stores the ends of jobs. Belongs to one event loop."""

    def __init__(self, services: JobServices) -> None:
        self._services = services
        self._store = services.store
        self._storing: asyncio.Task[None] | None = None  # while there are any to store again

    async def stop(self) -> None:
        """Try no more to store ends that the disk did not take."""
        if self._storing is not None:
            self._storing.cancel()
            await asyncio.gather(self._storing, return_exceptions=True)

    async def store(self, live: LiveJob, job: JobRecord) -> None:
        """Store a job's last state, and let go of what only it needed. Raises TakenOver."""
        try:
            model = await self._stored(live, job)
            await live.store.call(live.store.discard_upload, live.model.sha256)
            if self._services.models.give_up(live.model):
                await live.store.call(live.store.discard_artefact, live.model.artefact)
            if model is not None:
                self._services.models.register(model)
        except TakenOver:
            raise
        except Exception:  # watchers of the job must see its end all the same
            log.exception("a job's end could not be stored", extra={"job": job.id})

    async def _stored(self, live: LiveJob, job: JobRecord) -> ModelVersion | None:
        """Store the last state; try on as long as another server may take the job over."""
        tries = 0
        while True:
            try:
                return await live.store.call(live.store.end_job, job)
            except ResourceExhausted:  # of the database's disk; ``call`` waits while it is away
                if not live.store.is_revocable:
                    raise
                tries += 1
                await self._services.retry_pauses.pause(tries)

    def store_later(self) -> None:
        """Begin to store what the disk did not take, unless that goes on already."""
        if self._store.has_unstored_ends and self._storing is None:
            self._storing = asyncio.create_task(self._store_ends(), name="store-ends")
            self._storing.add_done_callback(log_failure)

    async def _store_ends(self) -> None:
        """Store the ends of jobs that the disk did not take, trying until it takes them."""
        tries = 0
        while self._store.has_unstored_ends:
            tries += 1
            await self._services.retry_pauses.pause(tries)
            try:
                await self._store.call(self._store.store_ends)
            except DiskFailure:
                continue
            except Exception:
                log.exception("the ends of jobs could not be stored")
        self._storing = None
