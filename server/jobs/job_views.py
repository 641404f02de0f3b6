"""Looks at jobs, for any caller: at live ones here, at others as they are stored."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from braid.core.errors import Draining
from braid.server.jobs.live_job import LiveJob
from braid.server.jobs.running_jobs import RunningJobs
from braid.server.jobs.services import JobServices
from braid.server.store.records import JobRecord


class JobViews:
    """Looks at jobs. Belongs to one event loop."""

    def __init__(self, services: JobServices, live: RunningJobs) -> None:
        self._store = services.store
        self._registry = services.registry
        self._live = live
        self._is_watchable = True

    def release(self) -> None:
        """End every watch with Draining, so that no watcher holds up a shutdown."""
        self._is_watchable = False
        for live in self._live:
            live.changed.set()

    async def find(self, job_id: str) -> JobRecord:
        live = self._live.find(job_id)
        return live.job if live else await self._store.call(self._store.find_job, job_id)

    async def list(self, model: str | None = None, limit: int = 100) -> list[JobRecord]:
        stored = await self._store.call(self._store.jobs, model, limit)
        return [live.job if (live := self._live.find(job.id)) else job for job in stored]

    async def watch(self, job_id: str) -> AsyncGenerator[JobRecord, None]:
        last: JobRecord | None = None
        while True:
            live = self._live.find(job_id)
            changes = self._stored(job_id, last) if live is None else self._changes(live, last)
            async with aclosing(changes):
                async for job in changes:
                    last = job
                    yield job
            if last is not None and last.state.has_ended:
                return  # else the job has become live, or came from another node, or went to one

    async def _changes(
        self, live: LiveJob, last: JobRecord | None
    ) -> AsyncGenerator[JobRecord, None]:
        """Yield the changes of a live job, until it has ended or is another node's."""
        while not live.is_gone:
            changed, job = live.changed, live.job
            if job is not last:
                last = job
                yield job
            elif job.state.has_ended:
                return
            else:
                self._check_watchable()
                await changed.wait()

    async def _stored(self, job_id: str, last: JobRecord | None) -> AsyncGenerator[JobRecord, None]:
        """Yield the changes of a job as it is stored, until it has ended or is live here."""
        while True:
            job = await self._store.call(self._store.find_job, job_id)
            if last is not None and not job.state.has_ended:
                # What was stored is a second older than what watchers of its last owner saw.
                job = replace(job, progress=max(job.progress, last.progress))
            if job != last:
                last = job
                yield job
            if job.state.has_ended or self._live.find(job_id) is not None:
                return
            self._check_watchable()
            await self._registry.changed()

    def _check_watchable(self) -> None:
        if not self._is_watchable:
            raise Draining("the server is shutting down; the job goes on after its restart")
