"""Jobs of a store that several nodes share: taken over, cancelled and added for other devices.

    claim ──> jobs without a living owner ──lease──> run here
        └───> jobs live here that a caller of another node wants to end ──> cancelled

On a machine of its own nothing of this is used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from time import monotonic

from braid.core.errors import NotFound, Unavailable
from braid.server.jobs.interfaces import JobLeases
from braid.server.jobs.live.live_jobs import LiveJob, LiveJobs
from braid.server.jobs.live.running import RunningJobs
from braid.server.store.fleet.leases import DELETE, ClaimedJob, UnfinishedJob
from braid.server.store.records import JobRecord, JobStatus, Lease, ModelStatus, ModelVersion
from braid.server.store.store import Store

log = logging.getLogger("braid.jobs")

CLAIMED_AT_ONCE = 2
"""Jobs that a node takes over before it lets others look."""

CANCEL_LEASES = 3.0
"""Times the length of a lease that a cancellation waits for the owner of a job."""


class JobClaims:
    """Takes over jobs whose owner is lost, and ends jobs of other nodes."""

    def __init__(
        self,
        store: Store,
        leases: JobLeases,
        live: LiveJobs,
        running: RunningJobs,
        device_keys: Callable[[], str],
    ) -> None:
        self._store = store
        self._leases = leases
        self._live = live
        self._running = running
        self._device_keys = device_keys
        self._turn = asyncio.Lock()

    async def claim(self) -> bool:
        """Take over some jobs without a living owner; returns bool: there may be more.

        Jobs that are live here and were asked to end elsewhere are cancelled.

        Raises:
            Unavailable: the database is away.
        """
        async with self._turn:
            self._live.counted(await self._store.call(self._store.count_jobs))
            claimed = 0
            for one in await self._store.call(self._store.jobs_to_claim):
                live = self._live.find(one.job.id)
                if live is not None:
                    if one.cancel_requested:
                        self._running.cancel_soon(live)
                elif self._is_free(one) and await self._claim(one.job.id):
                    claimed += 1
                    if claimed == CLAIMED_AT_ONCE:
                        return True
            return False

    def _is_free(self, one: UnfinishedJob) -> bool:
        return one.is_free or (one.has_expired and self._leases.takes_expired)

    async def _claim(self, job_id: str) -> bool:
        """Take over one job if it is still free, and this node's to work on."""
        taken = await self._store.call(
            self._store.claim_job, job_id, self._device_keys(), self._leases.takes_expired
        )
        if taken is None:
            return False
        await self._take_over(taken)
        return True

    async def _take_over(self, taken: ClaimedJob) -> None:
        job, model = taken.job, taken.model
        facts = {"job": job.id, "model": job.model, "version": job.version}
        if model is None or taken.cancel_requested:
            message = "the model was deleted" if model is None else "cancelled by request"
            gone = replace(job, state=JobStatus.CANCELLED, message=message)
            fenced = self._store.fenced(taken.lease)
            await fenced.call(fenced.end_leased_job, gone, taken.lease)
            log.info("job of another node ended", extra=facts)
            return
        log.info("job taken over", extra={**facts, "fence": taken.lease.fence})
        if taken.lease.fence > 1:
            self._leases.taken_over()
        self._begin(job, model, taken.lease)

    async def add_job_for_this_type(self, model: ModelVersion) -> JobRecord | None:
        """Add a job for a model that serves, if these devices had none, or the next try is due."""
        made = await self._store.call(
            self._store.add_job_for_devices, model.name, model.version, self._device_keys()
        )
        if made is None:
            return None
        log.info("job added for the devices of this node", extra={"job": made.job.id})
        self._begin(made.job, made.model, made.lease)
        return made.job

    async def schedule_for_this_type(self) -> None:
        """Add the jobs that models that serve lack for these devices, and those that are due."""
        lacking = self._store.models_lacking_job
        for model in await self._store.call(lacking, self._device_keys()):
            await self.add_job_for_this_type(model)

    def _begin(self, job: JobRecord, model: ModelVersion, lease: Lease | None) -> None:
        live = LiveJob(job, model, self._store)
        live.lease = lease
        self._running.begin(live)

    async def cancel(self, job_id: str) -> JobRecord:
        """End a job that another node works on; returns it ended.

        Raises:
            JobNotFound: there is none.
            Unavailable: its owner has not ended it, though it lives.
        """
        job = await self._store.call(self._store.request_cancel, job_id)
        give_up = monotonic() + CANCEL_LEASES * self._leases.seconds
        while not job.state.has_ended:
            if monotonic() > give_up:
                raise Unavailable(
                    f"the node that works on job {job_id} has not ended it yet; it will"
                )
            await self.claim()  # its owner may be lost
            if (live := self._live.find(job_id)) is not None:
                await self._running.cancel(live)
            job = await self._store.call(self._store.find_job, job_id)
            if not job.state.has_ended:
                await self._leases.changed()
        return job

    async def cancel_model(self, name: str, version: int) -> None:
        """End the jobs that other nodes have of a model version."""
        for one in await self._store.call(self._store.jobs_to_claim):
            if (one.job.model, one.job.version) == (name, version):
                await self.cancel(one.job.id)

    async def finish_deletions(self) -> None:
        """Delete the versions whose deletion a node began that is lost."""
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
