"""Which registration job runs when, what is known of it, and how it ends.

    RPC ──register──> store (rows on disk) ──> JobRunner: one task a job ──> registration.py
    RPC ──watch/cancel──────────────────────────┘   └── each change ──> store, watchers, metrics

    QUEUED ─> IMPORTING ─> PROFILING <─> SCHEDULING <─> VERIFYING ─> READY | UNSCHEDULED
       ▲___________________________│ restart of the server               | FAILED | CANCELLED

Imports run several at once as far as memory goes (imports.py), measuring on a device one at a time,
first come, first served; so a new model serves within its import time even while another is being
profiled.

Guarantees: a job that was answered for runs, also across crashes; a job ends exactly once; its
end is on disk before anyone sees it, unless the disk takes no writes (then it is stored once it
does, and a crash before that lets the job go on); its progress never goes back.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from braid.compiler.device import check_offered
from braid.compiler.options import ModelOptions
from braid.compiler.progress import UNKNOWN
from braid.compiler.samples import check_samples
from braid.core.background import though_callers_leave
from braid.core.errors import DiskFailure, Draining, InvalidRequest, NotFound, PreconditionFailed
from braid.server.jobs.interfaces import CheckImported
from braid.server.jobs.live_job import LiveJob
from braid.server.jobs.running_jobs import RunningJobs
from braid.server.jobs.services import JobServices
from braid.server.store.records import (
    JobRecord,
    JobStatus,
    ModelStatus,
    ModelVersion,
    ReceivedUpload,
    Registration,
    WhichSchedules,
)

ASKED = "it was asked for"
"""Why schedules are made again that nothing is wrong with."""


class JobRunner:
    """Runs all registration jobs of a server. Belongs to one event loop."""

    def __init__(self, services: JobServices) -> None:
        self.services = services
        self._store = services.store
        self._files = services.files
        self._registry = services.registry
        self.running = RunningJobs(services)
        self._started = asyncio.Event()  # or it is known that it will not be
        self._is_started = False
        self._is_watchable = True
        self._registry.attach(self)

    async def start(self) -> None:
        """Queue the jobs again that a stop or a crash cut off, oldest first.

        A model that served its schedules on another device, or on this one before its software
        or threads changed, gets a new job. The devices are up by now.
        """
        if not self._registry.is_shared:
            await self._queue_again()
        self._is_started = True
        self._started.set()
        await self._registry.take_jobs()

    async def _queue_again(self) -> None:
        """Queue all jobs that have not ended: there is no other server that works on them."""
        with suppress(DiskFailure):  # logged; what serves goes on serving
            await self._store.call(self._store.reschedule, self.services.device_keys)
        self.running.counted(await self._store.call(self._store.count_jobs))
        for job in await self._store.call(self._store.unfinished_jobs):
            try:
                model = await self._store.call(self._store.find_model, job.model, job.version)
            except NotFound:
                ended = replace(job, state=JobStatus.CANCELLED, message="the model was deleted")
                await self._store.call(self._store.end_job, ended)
                self.running.count(job.state, ended.state)
            else:
                queued = replace(job, state=JobStatus.QUEUED, detail="", eta_seconds=UNKNOWN)
                self.running.count(job.state, queued.state)
                self.running.begin(LiveJob(queued, model, self._store))

    async def started(self) -> None:
        """Wait until jobs can be made: models are restored first. Raises Draining."""
        await self._started.wait()
        if not self._is_started:
            raise Draining("the server is shutting down; try again after its restart")

    async def stop(self) -> None:
        """Stop working. Jobs that have not ended go on at the next start."""
        self.release_watchers()
        await self.running.stop()

    def release_watchers(self) -> None:
        """End every watch and wait for the start with Draining: none may hold up a shutdown."""
        self._started.set()
        self._is_watchable = False
        for live in self.running:
            live.changed.set()

    async def register(
        self,
        name: str,
        received: ReceivedUpload,
        options: ModelOptions,
        version: int | None = None,
    ) -> Registration:
        """Make a model version and run its job, or find the job of the same registration.

        Once begun it completes, even if the caller goes away. Raises InvalidRequest, Draining, or
        PreconditionFailed: ``version`` is given, and is something else.
        """
        store, models = self._store, self.services.models

        async def register(keep: Callable[[], Awaitable[None]]) -> Registration:
            keys = self.services.device_keys
            rows = partial(store.call, store.register, name, received, options, keys, version)
            async with self.running.storing_rows:
                entry = await self._files.stored_with(keep, rows)
                if entry.job.state.has_ended and models.was_not_restored(entry.model):
                    entry = await store.call(store.add_job, entry.model, keys)
                models.register(entry.model)
                self.running.begin_new(entry)
            return entry

        return await self._take(received, options, register)

    async def place(
        self,
        name: str,
        received: ReceivedUpload,
        options: ModelOptions,
        version: int,
        check: CheckImported,
    ) -> Registration:
        """Run a job that makes these bytes serve as a version, whatever that was before.

        What the version serves it serves until then, also if it never comes to that. Once begun it
        completes. Raises InvalidRequest or Draining.
        """
        store, models = self._store, self.services.models

        async def place(keep: Callable[[], Awaitable[None]]) -> Registration:
            keys = self.services.device_keys
            present = await store.call(store.models, name)
            serves = (version, ModelStatus.SERVING) in {(row.version, row.state) for row in present}
            # What serves goes on being scheduled until something else does.
            await self._cancel_where(lambda live: live.is_of(name, version, serves))
            rows = partial(store.call, store.place, name, received, options, keys, version)
            async with self.running.storing_rows:
                entry = await self._files.stored_with(keep, rows)
                (models.replacing if entry.replaces else models.register)(entry.model)
                self.running.begin_new(entry, check)
            return entry

        return await self._take(received, options, place)

    async def _take(
        self,
        received: ReceivedUpload,
        options: ModelOptions,
        store_rows: Callable[[Callable[[], Awaitable[None]]], Coroutine[Any, Any, Registration]],
    ) -> Registration:
        """Keep an upload, then store its rows; ``store_rows`` gets what keeps it once more."""
        if self.running.is_stopping:
            raise Draining("the server is shutting down; register again after its restart")
        check_offered(options.precision, self.services.devices)
        check_samples(options.precision, given=bool(options.samples))
        await self.started()
        keep = partial(self._files.keep_upload, received)
        with self._files.in_use(received.sha256):
            await keep()
            return await though_callers_leave(store_rows(keep))

    async def schedule_again(
        self,
        name: str,
        version: int,
        *,
        batch_size: int | None = None,
        device: str = "",
    ) -> JobRecord:
        """Forget the measurements of a model version, and schedule it afresh; returns the job.

        Its plans serve until the new ones are verified. A job under way already is the answer.
        ``batch_size`` None and ``device`` "" mean all. Raises NotFound, InvalidRequest,
        PreconditionFailed (it does not serve) or Draining.
        """
        if self.running.is_stopping:
            raise Draining("the server is shutting down; schedule again after its restart")
        await self.started()
        which = WhichSchedules(self._device_keys_of(device), batch_size)
        again, store = self._store.schedule_again, self._store
        async with self.running.storing_rows:
            entry = await store.call(again, name, version, self.services.device_keys, which, ASKED)
            self.running.begin_new(entry)
        return entry.job

    def _device_keys_of(self, device: str) -> list[str]:
        """Key of a device; of all if "" is given."""
        devices = self.services.devices
        keys = [item.device_key for item in devices if device in ("", item.name)]
        if not keys:
            names = ", ".join(item.name for item in devices)
            raise InvalidRequest(f"there is no device {device!r}; devices: {names}")
        return keys

    @property
    def has_jobs(self) -> bool:
        return len(self.running) > 0

    @property
    def takes_jobs(self) -> bool:
        """True if jobs can be begun: the server is started, and not being stopped."""
        return self._is_started and not self.running.is_stopping

    def deleting(self, name: str, version: int) -> AbstractAsyncContextManager[None]:
        return self._registry.deleting(name, version)

    # Looking.

    async def find(self, job_id: str) -> JobRecord:
        live = self.running.find(job_id)
        return live.job if live else await self._store.call(self._store.find_job, job_id)

    async def list(self, model: str | None = None, limit: int = 100) -> list[JobRecord]:
        """Newest jobs, newest first; of one model if given."""
        stored = await self._store.call(self._store.jobs, model, limit)
        return [live.job if (live := self.running.find(job.id)) else job for job in stored]

    async def watch(self, job_id: str) -> AsyncGenerator[JobRecord, None]:
        """Yield the job now, then its changes; a slow reader misses changes, but not the end.

        Raises JobNotFound. Raises Draining: the server stops; the job goes on at its next start.
        """
        await self.started()
        last: JobRecord | None = None
        while True:
            live = self.running.find(job_id)
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
            if job.state.has_ended or self.running.find(job_id) is not None:
                return
            self._check_watchable()
            await self._registry.changed()

    def _check_watchable(self) -> None:
        if not self._is_watchable:
            raise Draining("the server is shutting down; the job goes on after its restart")

    # Cancelling.

    async def cancel(self, job_id: str) -> JobRecord:
        """End a job now; its task has ended when this returns.

        A model that serves goes on with the plans it has. Cancelling twice is no error. Raises
        JobNotFound, or PreconditionFailed: it has ended otherwise.
        """
        await self.started()
        live = self.running.find(job_id)
        if live is not None:
            await self.running.cancel(live)
        if live is not None and not live.is_gone:
            job = live.job
        else:
            job = await self._registry.cancel(job_id, self._store)
        if job.state is not JobStatus.CANCELLED:
            raise PreconditionFailed(f"job {job.id} has ended already: {job.state.value}")
        return job

    def is_working_on(self, name: str, version: int) -> bool:
        """True if a job of a version runs here, or its end is being stored."""
        return any(live.is_of(name, version) for live in self.running)

    def has_outdated(self, model: ModelVersion) -> bool:
        """True if a job runs here for what a version was before another server replaced it."""
        return any(live.is_outdated(model) for live in self.running)

    async def cancel_outdated(self, model: ModelVersion) -> None:
        """End the jobs that run here for what a version was before."""
        await self._cancel_where(lambda live: live.is_outdated(model))

    async def cancel_model(self, name: str, version: int) -> None:
        """End the jobs of a model version that is about to be deleted, or unloaded."""
        await self._cancel_where(lambda live: live.is_of(name, version))
        await self._registry.cancel_model(name, version)

    async def _cancel_where(self, is_doomed: Callable[[LiveJob], bool]) -> None:
        async with (
            self.running.storing_rows
        ):  # a registration that stored its rows has its task now
            doomed = [live.job.id for live in self.running if is_doomed(live)]
        for job_id in doomed:
            with suppress(PreconditionFailed):  # it ended by itself just now
                await self.cancel(job_id)
