"""Which node does which work: jobs without a living owner are taken over, others are left alone.

    take_jobs, run ──> jobs without a living owner ──lease──> run here, from what was stored of them
                └────> jobs live here that a caller of another node wants to end ──> cancelled

A node looks after each notification, and several times within a lease.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from time import monotonic

from braid.core.errors import BraidError, NotFound, Unavailable
from braid.server.fleet.leases import Leases
from braid.server.fleet.records import DELETE, SCHEDULE, Lease, UnfinishedJob
from braid.server.fleet.store import FleetStore
from braid.server.jobs.live_job import LiveJob
from braid.server.jobs.registry import Registry, Work
from braid.server.jobs.runner import JobRunner
from braid.server.store.records import JobRecord, JobStatus, ModelStatus
from braid.server.store.store import Store

log = logging.getLogger("braid.fleet")

LOOKS_A_LEASE = 5.0
"""Looks for jobs without an owner within the time of a lease, if no notification comes."""

MORE_SECONDS = 0.25
"""Pause in which other nodes may take jobs, when there are more than this node took at once."""

CLAIMED_AT_ONCE = 2
"""Jobs that a node takes over before it lets others look."""

CANCEL_LEASES = 3.0
"""Times the length of a lease that a cancellation waits for the owner of a job."""


class FleetRegistry(Registry):
    """Registry of one node among several. A grant is the lease of a job."""

    is_shared = True

    def __init__(self, store: FleetStore, leases: Leases) -> None:
        self._store = store
        self._leases = leases
        self._look_s = leases.seconds / LOOKS_A_LEASE
        self.runner: JobRunner
        self._turn = asyncio.Lock()
        self._woken = asyncio.Event()
        self._is_away = False

    def attach(self, runner: JobRunner) -> None:
        self.runner = runner

    # Looking for work.

    def wake(self) -> None:
        """Look soon: a notification has come."""
        self._woken.set()

    async def run(self) -> None:
        """Take jobs over, end those that are to end, add those that are due, until cancelled."""
        added_at = monotonic()
        while True:
            self._woken.clear()
            has_more = await self._tried(self.claim)
            if monotonic() >= added_at + self._leases.seconds:
                added_at = monotonic()
                await self._tried(self.add_missing_jobs)
                await self._tried(self.finish_deletions)
            with suppress(TimeoutError):
                async with asyncio.timeout(MORE_SECONDS if has_more else self._look_s):
                    await self._woken.wait()

    async def _tried(self, look: Callable[[], Awaitable[bool | None]]) -> bool:
        """Look; an error of the database ends no loop, and is logged once."""
        try:
            has_more = bool(await look())
        except Exception as error:
            if not isinstance(error, BraidError):
                log.exception("no jobs are taken over")
            elif not self._is_away:
                log.warning("no jobs are taken over", extra={"reason": str(error)})
            self._is_away = True
            return False
        self._is_away = False
        return has_more

    async def take_jobs(self) -> None:
        await self.add_missing_jobs()
        await self.claim()

    async def claim(self) -> bool:
        """Take over some jobs without a living owner; returns whether there may be more.

        Jobs that are live here and were asked to end elsewhere are cancelled. Raises Unavailable:
        the database is away.
        """
        if not self.runner.takes_jobs:
            return False
        async with self._turn:
            running = self.runner.running
            running.counted(await self._store.call(self._store.count_jobs))
            claimed = 0
            for entry in await self._store.call(self._store.jobs_to_claim):
                live = running.find(entry.job.id)
                if live is not None:
                    if entry.cancel_requested:
                        running.cancel_soon(live)
                elif self._is_free(entry) and await self._claim(entry.job.id):
                    claimed += 1
                    if claimed == CLAIMED_AT_ONCE:
                        return True
            return False

    def _is_free(self, entry: UnfinishedJob) -> bool:
        return entry.is_free or (entry.has_expired and self._leases.takes_expired)

    async def _claim(self, job_id: str) -> bool:
        """Take over one job if it is still free, and this node's to work on."""
        keys, takes_expired = self.runner.services.device_keys, self._leases.takes_expired
        claimed = await self._store.call(self._store.claim_job, job_id, keys, takes_expired)
        if claimed is None:
            return False
        job, model = claimed.job, claimed.model
        facts = {"job": job.id, "model": job.model, "version": job.version}
        if model is None or claimed.cancel_requested:
            message = "the model was deleted" if model is None else "cancelled by request"
            ended = replace(job, state=JobStatus.CANCELLED, message=message)
            fenced = self._store.fenced(claimed.lease)
            await fenced.call(fenced.end_job, ended)
            log.info("job of another node ended", extra=facts)
            return True
        log.info("job taken over", extra={**facts, "fence": claimed.lease.fence})
        if claimed.lease.fence > 1:
            self._leases.metrics.takeovers.inc()
        self.runner.running.begin(LiveJob(job, model, self._store, grant=claimed.lease))
        return True

    async def add_missing_jobs(self) -> None:
        """Add the jobs that models that serve lack for these devices, and those that are due."""
        if not self.runner.takes_jobs:
            return
        store, keys = self._store, self.runner.services.device_keys
        for model in await store.call(store.models_lacking_job, keys):
            added = await store.call(store.add_job_for_devices, model.name, model.version, keys)
            if added is not None:
                log.info("job added for the devices of this node", extra={"job": added.job.id})
                live = LiveJob(added.job, added.model, store, grant=added.grant)
                self.runner.running.begin(live)

    # Work of this node.

    def begin(self, grant: object, store: Store, work: Work) -> Store:
        if not isinstance(grant, Lease):  # of a job that was made before this node had joined
            return store
        self._leases.hold(grant, work)
        return self._store.fenced(grant)

    def end(self, grant: object, *, was_refused: bool = False) -> None:
        if isinstance(grant, Lease):
            self._leases.drop(grant, was_refused=was_refused)

    async def give_back(self, grant: object) -> None:
        if isinstance(grant, Lease):
            await self._leases.release(grant)

    @asynccontextmanager
    async def making(
        self, key_id: str, store: Store, waiting: Callable[[], None]
    ) -> AsyncIterator[Store]:
        assert isinstance(store, FleetStore)
        async with self._leases.owning(SCHEDULE + key_id, waiting) as lease:
            yield store.fenced(lease)

    @asynccontextmanager
    async def deleting(self, name: str, version: int) -> AsyncIterator[None]:
        async with self._leases.owning(f"{DELETE}{name}:{version}", lambda: None):
            yield

    # Work of others.

    async def cancel(self, job_id: str, store: Store) -> JobRecord:
        job = await self._store.call(self._store.request_cancel, job_id)
        give_up = monotonic() + CANCEL_LEASES * self._leases.seconds
        while not job.state.has_ended:
            if monotonic() > give_up:
                raise Unavailable(
                    f"the node that works on job {job_id} has not ended it yet; it will"
                )
            await self.claim()  # its owner may be lost
            if (live := self.runner.running.find(job_id)) is not None:
                await self.runner.running.cancel(live)
            job = await self._store.call(self._store.find_job, job_id)
            if not job.state.has_ended:
                await self.changed()
        return job

    async def cancel_model(self, name: str, version: int) -> None:
        for entry in await self._store.call(self._store.jobs_to_claim):
            if (entry.job.model, entry.job.version) == (name, version):
                await self.cancel(entry.job.id, self._store)

    async def changed(self) -> None:
        await self._leases.changed()

    async def finish_deletions(self) -> None:
        """Delete the versions whose deletion a node began that is lost."""
        if not self.runner.takes_jobs:
            return
        for model in await self._store.call(self._store.models):
            if model.state is not ModelStatus.DRAINING:
                continue
            name = f"{DELETE}{model.name}:{model.version}"
            lease = await self._store.call(self._store.acquire, name, self._leases.takes_expired)
            if lease is not None:
                with suppress(NotFound):  # it was deleted just now
                    await self.cancel_model(model.name, model.version)
                    await self._store.call(self._store.delete_model, model.name, model.version)
                await self._leases.release(lease)
