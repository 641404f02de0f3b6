"""Tasks of live jobs: each runs its registration to one end, unless another server takes it over.

A job is paused when another server may work on it already (``Registry``): this one stops, and
stores nothing. If none took it, the job begins again at its top, and finds the artefact, the
measurements and the schedules that were stored.

On one machine, an end that the disk does not take is shown, and stored when the disk takes it; a
crash before that lets the job go on. Where several servers share the store, an end is shown once
it is stored; a server that lost the job stores none.
"""

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from braid.compiler.progress import LOAD_ENDS, UNKNOWN, ProgressReport
from braid.core.background import BackgroundTasks, log_failure
from braid.core.errors import (
    BraidError,
    DiskFailure,
    ResourceExhausted,
    StoreUnavailable,
    TakenOver,
)
from braid.core.shortage import shortage
from braid.server.jobs.interfaces import CheckImported
from braid.server.jobs.live_job import LiveJob
from braid.server.jobs.registration import RegistrationOutcome, register_model
from braid.server.jobs.registry import Work
from braid.server.jobs.services import JobServices
from braid.server.store.records import (
    JobRecord,
    JobStatus,
    ModelVersion,
    Registration,
    WhichSchedules,
)

log = logging.getLogger("braid.jobs")

END_SECONDS = 3.0
"""Time that the end of a job may still take at a stop; then another server does the rest again."""

SAVE_SECONDS = 1.0  # progress inside one state is stored this often at most


class RunningJobs:
    """Runs jobs, each in a task, and counts all by state. Belongs to one event loop."""

    def __init__(self, services: JobServices) -> None:
        self._services = services
        self._store = services.store
        self._registry = services.registry
        self._jobs: dict[str, LiveJob] = {}  # by id
        self._counts: dict[str, int] = {}
        self._storing: asyncio.Task[None] | None = None  # while there are ends to store again
        self._resuming = BackgroundTasks("jobs that go on")
        self.is_stopping = False
        self.storing_rows = asyncio.Lock()  # of a job whose task is not there yet

    def __iter__(self) -> Iterator[LiveJob]:
        return iter(list(self._jobs.values()))

    def __len__(self) -> int:
        return len(self._jobs)

    def find(self, job_id: str) -> LiveJob | None:
        """A live job; None if it ended, or is another process's."""
        return self._jobs.get(job_id)

    def counted(self, counts: dict[str, int]) -> None:
        """Take the numbers of jobs by state, as they are stored."""
        self._counts = counts
        self._services.observer.jobs_counted(counts)

    def count(self, before: JobStatus | None, after: JobStatus) -> None:
        """Count the change of one job's state; ``before`` None: it is new."""
        if before is after:
            return
        if before is not None:
            self._counts[before.value] -= 1
        self._counts[after.value] += 1
        self._services.observer.jobs_counted(self._counts)

    def begin_new(self, entry: Registration, check: CheckImported | None = None) -> None:
        """Run a job whose rows were just stored, if it is new."""
        if entry.is_new_job and not self.is_stopping:
            self.count(None, entry.job.state)
            facts = entry.job, entry.model, self._store
            self.begin(LiveJob(*facts, check, entry.replaces, entry.grant))

    def begin(self, live: LiveJob) -> None:
        """Run a job to its end, or until another server may."""
        self._jobs[live.job.id] = live
        told = (self._suspend, self._resume_soon, self.gone)
        work = Work(*(partial(tell, live) for tell in told))
        live.store = self._registry.begin(live.grant, self._store, work)
        self._start(live)

    async def stop(self) -> None:
        """Stop working. Jobs that have not ended go on at the next start, or on another server."""
        self.is_stopping = True
        stopped = list(self)
        for live in stopped:
            if live.task is not None and not live.is_ending:
                live.task.cancel()
        ending = [task for live in stopped for task in (live.task, live.canceller) if task]
        if ending and self._registry.is_shared:  # they may wait for the database
            _, waiting = await asyncio.wait(ending, timeout=END_SECONDS)
            for task in waiting:
                task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        if self._storing is not None:
            self._storing.cancel()
            await asyncio.gather(self._storing, return_exceptions=True)

    async def cancel(self, live: LiveJob) -> None:
        """End a job now; its task has ended when this returns."""
        if live.canceller is None:
            live.canceller = asyncio.create_task(self._cancel(live))
        await asyncio.shield(live.canceller)

    def cancel_soon(self, live: LiveJob) -> None:
        """Begin to end a job, unless that goes on already."""
        if live.canceller is None:
            live.canceller = asyncio.create_task(self._cancel(live))
            live.canceller.add_done_callback(log_failure)

    async def end(
        self, live: LiveJob, state: JobStatus, message: str, *, lacks_sizes: bool = False
    ) -> None:
        """Store a job's last state, then show it; ``lacks_sizes``: another one follows."""
        live.is_ending = True
        before = live.job
        job = _ended(before, state, message)
        try:
            await self._store_end(live, job)
        except TakenOver:
            self.gone(live, was_refused=True)
            return
        self._registry.end(live.grant)
        if lacks_sizes:
            await self._look_for_sizes(live)
        self.count(before.state, state)
        live.publish(job)
        self._jobs.pop(job.id, None)
        self._store_later()

    async def _look_for_sizes(self, live: LiveJob) -> None:
        """Begin the job that follows one: it finds its schedules, and tries larger sizes."""
        again, keys = self._store.schedule_again, self._services.device_keys
        name, version, none = live.job.model, live.job.version, WhichSchedules([])
        try:
            async with self.storing_rows:
                self.begin_new(await self._store.call(again, name, version, keys, none, ""))
        except BraidError as error:  # the version was deleted, or unloaded
            log.info("no larger batch sizes are looked for: %s", error, extra=_facts(live))

    # What the registry tells.

    def _suspend(self, live: LiveJob) -> None:
        """Stop working on a job that another server may have; its end, if decided, is tried on."""
        if live.task is not None and not live.is_ending and live.canceller is None:
            log.warning("job is suspended: another node may have it", extra=_facts(live))
            live.task.cancel()

    def _resume_soon(self, live: LiveJob) -> None:
        self._resuming.start(self._resume(live))

    async def _resume(self, live: LiveJob) -> None:
        if live.task is None or live.canceller is not None:
            return
        await asyncio.wait([live.task])
        if live.task.cancelled() and not (live.is_gone or live.is_ending or self.is_stopping):
            log.info("job goes on: no other node took it", extra=_facts(live))
            live.publish(replace(live.job, detail="", eta_seconds=UNKNOWN))
            self._start(live)

    def gone(self, live: LiveJob, *, was_refused: bool = False) -> None:
        """Forget a job that another server works on; nothing of it is stored here any more."""
        if live.is_gone:
            return
        log.warning("job is another node's now", extra=_facts(live))
        live.is_gone = True
        if live.task is not None and live.task is not asyncio.current_task():
            live.task.cancel()
        self._registry.end(live.grant, was_refused=was_refused)
        self._jobs.pop(live.job.id, None)
        live.wake()

    # One job.

    def _start(self, live: LiveJob) -> None:
        live.task = asyncio.create_task(self._run(live), name=f"job-{live.job.id}")
        live.task.add_done_callback(log_failure)

    async def _run(self, live: LiveJob) -> None:
        """Run a job to its end; the end of a cancelled job is stored by its canceller."""
        where = _facts(live)
        log.info("job begins", extra=where)
        services = replace(self._services, store=live.store)
        try:
            report = partial(self._report, live)
            outcome = await register_model(*(live.model, services, report, live.check))
        except TakenOver:  # a write was refused; it is left to any server, of which this may be one
            self.gone(live, was_refused=True)
            await self._registry.give_back(live.grant)
        except DiskFailure as error:
            log.error("job failed: %s", error, extra=where)
            await self.end(live, JobStatus.FAILED, str(error))
        except BraidError as error:
            # The reason is in the job: it may repeat names from the uploaded file.
            log.warning("job failed", extra={**where, "kind": type(error).__name__})
            await self.end(live, JobStatus.FAILED, str(error))
        except Exception as error:
            log.exception("job failed", extra=where)
            why = shortage(error) or "internal error; the server's log has more"
            await self.end(live, JobStatus.FAILED, str(why))
        else:
            log.info("job done", extra={**where, "unscheduled": len(outcome.failures)})
            await self.end(live, *_end_of(outcome), lacks_sizes=outcome.lacks_sizes)

    def _report(self, live: LiveJob, now: ProgressReport) -> None:
        if live.is_ending or live.is_gone:
            return
        before, seconds, state = live.job, time.time(), JobStatus(now.phase.value)
        job = replace(
            before,
            state=state,
            progress=max(before.progress, min(1.0, now.progress)),
            detail=now.detail,
            done=now.done,
            total=now.total,
            eta_seconds=now.eta_seconds,
            updated_unix=seconds,
        )
        self.count(before.state, state)
        live.publish(job)
        if live.replaces and now.progress >= LOAD_ENDS:
            self._has_replaced(live)
        if state is not before.state or seconds - live.saved_at >= SAVE_SECONDS:
            live.saved_at = seconds
            saved = asyncio.wrap_future(live.store.submit(live.store.save_job, job))
            saved.add_done_callback(partial(self._saved, live))

    def _saved(self, live: LiveJob, saved: asyncio.Future[None]) -> None:
        if saved.cancelled() or (error := saved.exception()) is None:
            return
        if isinstance(error, TakenOver):
            self.gone(live, was_refused=True)
        elif not isinstance(error, DiskFailure | StoreUnavailable):  # those are logged already
            log.error("a job's progress could not be stored", exc_info=error)

    def _has_replaced(self, live: LiveJob) -> None:
        """End the jobs of what a version served before: these bytes serve in its place now."""
        live.replaces = False
        for other in self:
            if other is not live and other.is_of(live.job.model, live.job.version):
                self.cancel_soon(other)

    async def _cancel(self, live: LiveJob) -> None:
        assert live.task is not None
        if not live.is_ending:
            live.task.cancel()
        await asyncio.wait([live.task])
        if not live.is_ending and not live.is_gone:
            await self.end(live, JobStatus.CANCELLED, "cancelled by request")

    # Ends.

    async def _store_end(self, live: LiveJob, job: JobRecord) -> None:
        """Store a job's last state, and let go of what only it needed. Raises TakenOver."""
        try:
            model = await self._end_stored(live, job)
            await live.store.call(live.store.discard_upload, live.model.sha256)
            if self._services.models.give_up(live.model):
                await live.store.call(live.store.discard_artefact, live.model.artefact)
            if model is not None:
                self._services.models.register(model)
        except TakenOver:
            raise
        except Exception:  # watchers of the job must see its end all the same
            log.exception("a job's end could not be stored", extra={"job": job.id})

    async def _end_stored(self, live: LiveJob, job: JobRecord) -> ModelVersion | None:
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

    def _store_later(self) -> None:
        """Begin to store what the disk did not take, unless that goes on already."""
        if self._store.has_unstored_ends and self._storing is None:
            self._storing = asyncio.create_task(self._store_ends(), name="store-ends")
            self._storing.add_done_callback(log_failure)

    async def _store_ends(self) -> None:
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


def _facts(live: LiveJob) -> dict[str, object]:
    return {"job": live.job.id, "model": live.job.model, "version": live.job.version}


def _ended(before: JobRecord, state: JobStatus, message: str) -> JobRecord:
    return replace(
        before,
        state=state,
        progress=1.0 if state is JobStatus.READY else before.progress,
        detail="",
        eta_seconds=0.0 if state is JobStatus.READY else UNKNOWN,
        message=message,
        updated_unix=time.time(),
    )


def _end_of(outcome: RegistrationOutcome) -> tuple[JobStatus, str]:
    if outcome.failures:
        why = "; ".join((*outcome.failures, *outcome.remarks))
        serves = "the model serves sequentially, or as before, where no schedule was made"
        return JobStatus.UNSCHEDULED, f"{serves}: {why}"
    return JobStatus.READY, "; ".join(outcome.remarks)
