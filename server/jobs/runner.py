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

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial

from braid.core.background import log_failure
from braid.core.errors import BraidError, DiskFailure, Draining, NotFound, PreconditionFailed
from braid.server.jobs.interfaces import CheckImported
from braid.server.jobs.progress import LOAD_ENDS, UNKNOWN, ProgressReport
from braid.server.jobs.registration import RegistrationOutcome, register_model
from braid.server.jobs.services import JobServices, check_offered
from braid.server.store.records import (
    JobRecord,
    JobStatus,
    ModelStatus,
    ModelVersion,
    ReceivedUpload,
    Registration,
    RegistrationOptions,
)

log = logging.getLogger("braid.jobs")

SAVE_SECONDS = 1.0  # progress inside one state is stored this often at most


class _Live:
    """A job that has not ended, with its task and its watchers. Owned by the runner."""

    def __init__(
        self,
        job: JobRecord,
        model: ModelVersion,
        check: CheckImported | None = None,
        replaces: bool = False,
    ) -> None:
        self.job = job
        self.model = model
        self.check: CheckImported = check or (lambda imported: None)
        self.replaces = replaces  # a version serves other bytes, until these do
        self.changed = asyncio.Event()  # set, and replaced, at each change
        self.task: asyncio.Task[None] | None = None
        self.canceller: asyncio.Task[None] | None = None
        self.is_ending = False  # the last state is decided, and being stored
        self.saved_at = 0.0

    def publish(self, job: JobRecord) -> None:
        """Set a new state and wake the watchers; slow ones see the latest only."""
        self.job = job
        self.changed.set()
        self.changed = asyncio.Event()


class JobRunner:
    """Runs all registration jobs of a server. Belongs to one event loop."""

    def __init__(self, services: JobServices) -> None:
        self._services = services
        self._store = services.store
        self._live: dict[str, _Live] = {}
        self._counts: dict[str, int] = {}
        self._preparing: asyncio.Task[None] | None = None
        self._storing_ends: asyncio.Task[None] | None = None  # while there are any to store
        self._started = asyncio.Event()  # or it is known that it will not be
        self._is_started = False
        self._registering = asyncio.Lock()  # while rows are stored whose task is not there yet
        self._is_stopping = False
        self._is_watchable = True

    async def start(self) -> None:
        """Queue the jobs again that a stop or a crash cut off, oldest first.

        A model that served its schedules on another device, or on this one before its software
        or threads changed, gets a new job. The devices are up by now.
        """
        with suppress(DiskFailure):  # logged; what serves goes on serving
            await self._store.call(self._store.reschedule, self.device_keys)
        self._counts = await self._store.call(self._store.count_jobs)
        self._services.observer.jobs_counted(self._counts)
        for job in await self._store.call(self._store.unfinished_jobs):
            try:
                model = await self._store.call(self._store.find_model, job.model, job.version)
            except NotFound:
                gone = replace(job, state=JobStatus.CANCELLED, message="the model was deleted")
                await self._store.call(self._store.end_job, gone)
                self._count(job.state, gone.state)
            else:
                queued = replace(job, state=JobStatus.QUEUED, detail="", eta_seconds=UNKNOWN)
                self._count(job.state, queued.state)
                self._start(_Live(queued, model))
        self._is_started = True
        self._started.set()
        self._prepare_job()

    async def started(self) -> None:
        """Wait until jobs can be made, watched and ended: the server restores its models first.

        Raises:
            Draining: the server is stopped before that.
        """
        await self._started.wait()
        if not self._is_started:
            raise Draining("the server is shutting down; try again after its restart")

    async def stop(self) -> None:
        """Stop working. Jobs that have not ended go on at the next start."""
        self.release_watchers()
        self._is_stopping = True
        stopped = list(self._live.values())
        for live in stopped:
            if live.task is not None and not live.is_ending:
                live.task.cancel()
        ending = [task for live in stopped for task in (live.task, live.canceller) if task]
        await asyncio.gather(*ending, return_exceptions=True)
        for task in (self._preparing, self._storing_ends):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def release_watchers(self) -> None:
        """End every watch with Draining, so that no watcher holds up a shutdown.

        Calls that wait for a start that was given up end the same way.
        """
        self._is_watchable = False
        self._started.set()
        for live in self._live.values():
            live.changed.set()

    @property
    def device_keys(self) -> str:
        """Keys of all devices that jobs schedule for, as one text."""
        return " | ".join(sorted(device.device_key for device in self._services.devices))

    async def register(
        self,
        name: str,
        received: ReceivedUpload,
        options: RegistrationOptions,
        version: int | None = None,
    ) -> Registration:
        """Make a model version and run its job, or find the job of the same registration.

        Once begun it completes, even if the caller goes away.

        Raises:
            InvalidRequest: the name is not one, or a device cannot compute in the precision.
            PreconditionFailed: ``version`` is given, and is something else.
            Draining: the server is shutting down.
        """
        if self._is_stopping:
            raise Draining("the server is shutting down; register again after its restart")
        check_offered(options.precision, self._services.devices)
        await self.started()
        return await asyncio.shield(self._register(name, received, options, version))

    async def _register(
        self,
        name: str,
        received: ReceivedUpload,
        options: RegistrationOptions,
        version: int | None,
    ) -> Registration:
        async with self._registering:
            made = await self._store.call(
                self._store.register, name, received, options, self.device_keys, version
            )
            if made.job.state.has_ended and self._services.models.was_not_restored(made.model):
                job = await self._store.call(self._store.add_job, made.model, self.device_keys)
                made = Registration(made.model, job, is_new_job=True)
            self._services.models.register(made.model)
            self._begin(made)
        return made

    async def place(
        self,
        name: str,
        received: ReceivedUpload,
        options: RegistrationOptions,
        version: int,
        check: CheckImported,
    ) -> Registration:
        """Run a job that makes these bytes serve as a version, whatever that was before.

        What the version serves it serves until then, also if it never comes to that. Once begun it
        completes.

        Raises:
            InvalidRequest: the name is not one, or a device cannot compute in the precision.
            Draining: the server is shutting down.
        """
        if self._is_stopping:
            raise Draining("the server is shutting down")
        check_offered(options.precision, self._services.devices)
        await self.started()
        return await asyncio.shield(self._place(name, received, options, version, check))

    async def _place(
        self,
        name: str,
        received: ReceivedUpload,
        options: RegistrationOptions,
        version: int,
        check: CheckImported,
    ) -> Registration:
        present = await self._store.call(self._store.models, name)
        serves = (version, ModelStatus.SERVING) in {(each.version, each.state) for each in present}
        # What serves goes on being scheduled until something else does.
        await self._cancel_where(lambda live: _is_of(live, name, version, serves))
        async with self._registering:
            made = await self._store.call(
                self._store.place, name, received, options, self.device_keys, version
            )
            models = self._services.models
            (models.replacing if made.replaces else models.register)(made.model)
            self._begin(made, check)
        return made

    def _begin(self, made: Registration, check: CheckImported | None = None) -> None:
        """Run a job whose rows were just stored, if it is new."""
        if made.is_new_job and not self._is_stopping:
            self._count(None, made.job.state)
            self._start(_Live(made.job, made.model, check, made.replaces))

    async def profile_again(self, name: str, version: int) -> JobRecord:
        """Forget the measurements of a model version, and schedule it afresh.

        Its plans serve until the new ones are verified. A job under way already is the answer.

        Raises:
            ModelNotFound, VersionNotFound: there is none.
            Draining: the server is shutting down.
        """
        if self._is_stopping:
            raise Draining("the server is shutting down; profile again after its restart")
        await self.started()
        devices = [device.device_key for device in self._services.devices]
        async with self._registering:
            made = await self._store.call(
                self._store.profile_again, name, version, self.device_keys, devices
            )
            self._begin(made)
        return made.job

    # Looking.

    async def find(self, job_id: str) -> JobRecord:
        """A job as it is now.

        Raises:
            JobNotFound: there is none.
        """
        live = self._live.get(job_id)
        return live.job if live else await self._store.call(self._store.find_job, job_id)

    async def list(self, model: str | None = None, limit: int = 100) -> list[JobRecord]:
        """Newest jobs, newest first; of one model if given."""
        stored = await self._store.call(self._store.jobs, model, limit)
        return [live.job if (live := self._live.get(job.id)) else job for job in stored]

    async def watch(self, job_id: str) -> AsyncGenerator[JobRecord, None]:
        """Yield the job now, then its changes; a slow reader misses changes, but not the end.

        Raises:
            JobNotFound: there is none.
            Draining: the server stops; the job goes on at its next start.
        """
        await self.started()
        live = self._live.get(job_id)
        if live is None:
            yield await self._store.call(self._store.find_job, job_id)
            return
        seen = None
        while True:
            changed, job = live.changed, live.job
            if job is not seen:
                seen = job
                yield job
            elif job.state.has_ended:
                return
            elif not self._is_watchable:
                raise Draining("the server is shutting down; the job goes on after its restart")
            else:
                await changed.wait()

    # Cancelling.

    async def cancel(self, job_id: str) -> JobRecord:
        """End a job now; its task has ended when this returns.

        A model that serves goes on with the plans it has. Cancelling twice is no error.

        Raises:
            JobNotFound: there is none.
            PreconditionFailed: it has ended otherwise.
        """
        await self.started()
        live = self._live.get(job_id)
        if live is not None:
            if live.canceller is None:
                live.canceller = asyncio.create_task(self._cancel(live))
            await asyncio.shield(live.canceller)
        job = live.job if live else await self._store.call(self._store.find_job, job_id)
        if job.state is not JobStatus.CANCELLED:
            raise PreconditionFailed(f"job {job.id} has ended already: {job.state.value}")
        return job

    async def cancel_model(self, name: str, version: int) -> None:
        """End the jobs of a model version that is about to be deleted, or unloaded."""
        await self._cancel_where(lambda live: _is_of(live, name, version))

    async def _cancel_where(self, is_doomed: Callable[[_Live], bool]) -> None:
        async with self._registering:  # a registration that stored its rows has its task now
            doomed = [live.job.id for live in self._live.values() if is_doomed(live)]
        for job_id in doomed:
            with suppress(PreconditionFailed):  # it ended by itself just now
                await self.cancel(job_id)

    async def _cancel(self, live: _Live) -> None:
        assert live.task is not None
        if not live.is_ending:
            live.task.cancel()
        await asyncio.wait([live.task])
        if not live.is_ending:
            await self._end(live, JobStatus.CANCELLED, "cancelled by request")

    # Running.

    def _start(self, live: _Live) -> None:
        self._live[live.job.id] = live
        live.task = asyncio.create_task(self._run(live), name=f"job-{live.job.id}")
        live.task.add_done_callback(log_failure)

    async def _run(self, live: _Live) -> None:
        """Run a job to its end; the end of a cancelled job is stored by its canceller."""
        where = {"job": live.job.id, "model": live.job.model, "version": live.job.version}
        log.info("job begins", extra=where)
        try:
            report = partial(self._report, live)
            outcome = await register_model(live.model, self._services, report, live.check)
        except DiskFailure as error:
            log.error("job failed: %s", error, extra=where)
            await self._end(live, JobStatus.FAILED, str(error))
        except BraidError as error:
            # The reason is in the job: it may repeat names from the uploaded file.
            log.warning("job failed", extra={**where, "kind": type(error).__name__})
            await self._end(live, JobStatus.FAILED, str(error))
        except Exception:
            log.exception("job failed", extra=where)
            await self._end(live, JobStatus.FAILED, "internal error; the server's log has more")
        else:
            log.info("job done", extra={**where, "unscheduled": len(outcome.failures)})
            await self._end(live, *_end_of(outcome))

    def _report(self, live: _Live, now: ProgressReport) -> None:
        """Take a report from a running job."""
        if live.is_ending:
            return
        before, seconds = live.job, time.time()
        job = replace(
            before,
            state=now.state,
            progress=max(before.progress, min(1.0, now.progress)),
            detail=now.detail,
            done=now.done,
            total=now.total,
            eta_seconds=now.eta_seconds,
            updated_unix=seconds,
        )
        self._count(before.state, now.state)
        live.publish(job)
        if live.replaces and now.progress >= LOAD_ENDS:
            self._has_replaced(live)
        if now.state is not before.state or seconds - live.saved_at >= SAVE_SECONDS:
            live.saved_at = seconds
            self._store.submit(self._store.save_job, job).add_done_callback(_log_unsaved)

    def _has_replaced(self, live: _Live) -> None:
        """End the jobs of what a version served before: these bytes serve in its place now."""
        live.replaces = False
        for other in self._live.values():
            is_outdated = other is not live and _is_of(other, live.job.model, live.job.version)
            if is_outdated and other.canceller is None:
                other.canceller = asyncio.create_task(self._cancel(other))
                other.canceller.add_done_callback(log_failure)

    async def _end(self, live: _Live, state: JobStatus, message: str) -> None:
        """Store a job's last state, then show it."""
        live.is_ending = True
        before = live.job
        job = replace(
            before,
            state=state,
            progress=1.0 if state is JobStatus.READY else before.progress,
            detail="",
            eta_seconds=0.0 if state is JobStatus.READY else UNKNOWN,
            message=message,
            updated_unix=time.time(),
        )
        try:
            model = await self._store.call(self._store.end_job, job)
            await self._store.call(self._store.discard_upload, live.model.sha256)
            if self._services.models.give_up(live.model):
                await self._store.call(self._store.discard_artefact, live.model.sha256)
            if model is not None:
                self._services.models.register(model)
        except Exception:  # watchers of the job must see its end all the same
            log.exception("a job's end could not be stored", extra={"job": job.id})
        self._count(before.state, state)
        live.publish(job)
        del self._live[job.id]
        self._prepare_job()
        if self._store.has_unstored_ends and self._storing_ends is None:
            self._storing_ends = asyncio.create_task(self._store_ends(), name="store-ends")
            self._storing_ends.add_done_callback(log_failure)

    def _prepare_job(self) -> None:
        """Prepare the next registration once requests leave it cores, while nothing is measured."""
        if self._preparing is None and not self._is_stopping:
            self._preparing = asyncio.create_task(self._prepare_when_quiet(), name="prepare-job")
            self._preparing.add_done_callback(log_failure)

    async def _prepare_when_quiet(self) -> None:
        await self._services.quiet()
        self._preparing = None
        if not self._live and not self._is_stopping:
            self._services.prepare_job()

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
        self._storing_ends = None

    def _count(self, before: JobStatus | None, after: JobStatus) -> None:
        if before is after:
            return
        if before is not None:
            self._counts[before.value] -= 1
        self._counts[after.value] += 1
        self._services.observer.jobs_counted(self._counts)


def _is_of(live: _Live, name: str, version: int, only_replacing: bool = False) -> bool:
    """Return whether a job is of a version, and if asked for, is to replace what that serves."""
    is_of = (live.job.model, live.job.version) == (name, version)
    return is_of and (live.replaces or not only_replacing)


def _end_of(outcome: RegistrationOutcome) -> tuple[JobStatus, str]:
    if outcome.failures:
        why = "; ".join((*outcome.failures, *outcome.remarks))
        serves = "the model serves sequentially, or as before, where no schedule was made"
        return JobStatus.UNSCHEDULED, f"{serves}: {why}"
    return JobStatus.READY, "; ".join(outcome.remarks)


def _log_unsaved(saved: Future[None]) -> None:
    """Log why a job's progress could not be stored, if it could not."""
    if saved.cancelled() or (error := saved.exception()) is None:
        return
    if not isinstance(error, DiskFailure):  # that one is logged already
        log.error("a job's progress could not be stored", exc_info=error)
