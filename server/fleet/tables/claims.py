"""Jobs of a database that several nodes share. Every function runs in the caller's transaction.

unfinished ──free──> claim: lease, and the job as its last owner left it
add_for_devices: a job for nodes of one type, once; again after UNSCHEDULED, later and later
"""

import time
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, select, update

from braid.compiler.progress import UNKNOWN
from braid.server.fleet.records import JOB, Claimant, ClaimedJob, Lease, UnfinishedJob
from braid.server.fleet.tables import leases as leases_table
from braid.server.fleet.tables import nodes as nodes_table
from braid.server.store.records import JobRecord, JobStatus, ModelStatus, ModelVersion, Registration
from braid.server.store.tables import jobs as jobs_table
from braid.server.store.tables import models as models_table
from braid.server.store.tables.dialects import now
from braid.server.store.tables.schema import jobs, leases

AGAIN_SECONDS, AGAIN_GROWTH, MOST_TRIES = 300.0, 4.0, 6
"""After a job ended UNSCHEDULED the first time it is tried again so much later, then after longer,
about a day after the first try the last time."""


def unfinished(connection: Connection) -> list[UnfinishedJob]:
    """Jobs that have not ended, oldest first."""
    free = leases_table.is_released().label("is_free")
    over = leases_table.has_expired(connection).label("has_expired")
    joined = jobs.outerjoin(leases, leases.c.name == JOB + jobs.c.id)
    query = (
        select(jobs, free, over).select_from(joined).where(_unfinished()).order_by(jobs.c.sequence)
    )
    return [
        UnfinishedJob(jobs_table.from_row(row), row.cancel_requested, row.is_free, row.has_expired)
        for row in connection.execute(query)
    ]


def claim(
    connection: Connection,
    claimant: Claimant,
    job_id: str,
    device_keys: str,
    takes_expired: bool = True,
) -> ClaimedJob | None:
    """Take over a job that no node works on; None if it is not for a node with these devices.

    It is if it was made for the same devices, or if no node with those lives. Then it is from now
    on for these devices; unless there is a job for them already, which goes first. Without
    ``takes_expired``, a lease that was not renewed in time is waited for.
    """
    row = _row(connection, job_id)
    if row is None or not _may_take(connection, claimant, row, device_keys):
        return None
    lease = leases_table.acquire(connection, claimant, JOB + job_id, takes_expired)
    if lease is None:
        return None
    row = _row(connection, job_id)
    if row is None:  # it has ended just now
        leases_table.end(connection, lease)
        return None
    job = replace(
        jobs_table.from_row(row),
        state=JobStatus.QUEUED,
        detail=f"taken over by {claimant.node}",
        eta_seconds=UNKNOWN,
        updated_unix=time.time(),
    )
    jobs_table.save(connection, job)
    moved = update(jobs).where(jobs.c.id == job_id).values(device_keys=device_keys)
    connection.execute(moved)
    model = models_table.find(connection, row.model, row.version)
    return ClaimedJob(job, model, lease, row.cancel_requested)


def end(connection: Connection, job: JobRecord, lease: Lease) -> ModelVersion | None:
    """Store the last state of a job and end its lease; returns its model, None if deleted."""
    jobs_table.end(connection, job)
    leases_table.end(connection, lease)
    return models_table.find(connection, job.model, job.version)


def request_cancel(connection: Connection, job_id: str) -> JobRecord:
    """Ask the owner of a job to end it, unless it has ended; returns it as it is.

    Raises JobNotFound: there is none.
    """
    request = update(jobs).where(jobs.c.id == job_id, _unfinished()).values(cancel_requested=True)
    connection.execute(request)
    return jobs_table.get(connection, job_id)


def lacking(connection: Connection, device_keys: str) -> list[ModelVersion]:
    """Models that serve, and may want a job for these devices: see ``add_for_devices``."""
    serving = [
        model for model in models_table.present(connection) if model.state is ModelStatus.SERVING
    ]
    done = select(jobs.c.model, jobs.c.version, jobs.c.state).where(
        jobs.c.device_keys == device_keys
    )
    last = {
        (row.model, row.version): row.state
        for row in connection.execute(done.order_by(jobs.c.sequence))
    }
    wanting = (None, JobStatus.UNSCHEDULED.value)
    return [model for model in serving if last.get((model.name, model.version)) in wanting]


def add_for_devices(
    connection: Connection, claimant: Claimant, name: str, version: int, device_keys: str
) -> Registration | None:
    """Add a job for a model that serves, if these devices had none; None: none is wanted now.

    One that ended UNSCHEDULED is tried again, later and later, a few times in all.
    """
    model = models_table.find(connection, name, version)
    if model is None or model.state is not ModelStatus.SERVING:
        return None
    last = _last_for(connection, model, device_keys)
    tries = 0
    if last is not None:
        if not _is_due(connection, last):
            return None
        tries = last.tries + 1
    job = jobs_table.add(connection, model, device_keys)
    connection.execute(update(jobs).where(jobs.c.id == job.id).values(tries=tries))
    return leased(connection, claimant, Registration(model, job, is_new_job=True))


def leased(connection: Connection, claimant: Claimant, registration: Registration) -> Registration:
    """The same registration, with the lease of its new job."""
    lease = leases_table.acquire(connection, claimant, JOB + registration.job.id)
    return replace(registration, grant=lease)


def under_way(
    connection: Connection, model: ModelVersion, device_keys: str
) -> tuple[JobRecord, str] | None:
    """Job of a version that has not ended, else its last for these devices.

    Returns the job and the devices it was made for.
    """
    mine = jobs.c.model == model.name, jobs.c.version == model.version
    query = select(jobs).where(*mine, _unfinished()).order_by(jobs.c.sequence.desc()).limit(1)
    row = connection.execute(query).first() or _last_for(connection, model, device_keys)
    return None if row is None else (jobs_table.from_row(row), row.device_keys)


def _may_take(connection: Connection, claimant: Claimant, row: Row[Any], device_keys: str) -> bool:
    if row.cancel_requested or row.device_keys == device_keys:
        return True
    if nodes_table.alive(connection, claimant.seconds, row.device_keys):
        return False
    same = jobs.c.model == row.model, jobs.c.version == row.version
    query = select(jobs.c.id).where(*same, _unfinished(), jobs.c.device_keys == device_keys)
    return connection.scalar(query) is None


def _is_due(connection: Connection, last: Row[Any]) -> bool:
    """True if a last job is to be made again now; it ended when its lease did."""
    if last.state != JobStatus.UNSCHEDULED.value or last.tries + 1 >= MOST_TRIES:
        return False
    pause_s = AGAIN_SECONDS * AGAIN_GROWTH**last.tries
    waits = leases.c.expires_at + pause_s > now(connection)
    query = select(leases.c.name).where(leases.c.name == JOB + last.id, waits)
    return connection.scalar(query) is None


def _last_for(connection: Connection, model: ModelVersion, device_keys: str) -> Row[Any] | None:
    this = jobs.c.model == model.name, jobs.c.version == model.version
    query = select(jobs).where(*this, jobs.c.device_keys == device_keys)
    return connection.execute(query.order_by(jobs.c.sequence.desc()).limit(1)).first()


def _row(connection: Connection, job_id: str) -> Row[Any] | None:
    return connection.execute(select(jobs).where(jobs.c.id == job_id, _unfinished())).first()


def _unfinished() -> Any:
    return jobs.c.state.not_in(jobs_table.ENDED)
