"""Jobs in the database. Every function runs inside the caller's transaction."""

import secrets
import time
from dataclasses import replace
from itertools import takewhile
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, func, insert, select, update

from braid.core.errors import JobNotFound
from braid.server.store.records import JobRecord, JobStatus, ModelStatus, ModelVersion
from braid.server.store.tables import models as models_table
from braid.server.store.tables.dialects import put_row
from braid.server.store.tables.schema import jobs, models, placed

ENDED = [state.value for state in JobStatus if state.has_ended]
_FIELDS = JobRecord.__slots__

# Made once: SQLAlchemy takes longer to make and to recognise a statement than SQLite to run it.
_SAVE = update(jobs).where(jobs.c.id == bindparam("job_id"), jobs.c.state.not_in(ENDED))
_RECORDS = select(*(jobs.c[name] for name in _FIELDS))
_GET = _RECORDS.where(jobs.c.id == bindparam("job_id"))
_LAST = (
    select(jobs)
    .where(jobs.c.model == bindparam("model"), jobs.c.version == bindparam("version"))
    .order_by(jobs.c.sequence.desc())
    .limit(1)
)
_UNFINISHED = _RECORDS.where(jobs.c.state.not_in(ENDED)).order_by(jobs.c.sequence)
_COUNTS = select(jobs.c.state, func.count()).group_by(jobs.c.state)
_WAITING = (
    select(func.count())
    .select_from(jobs.join(models, jobs.c.model == models.c.name))
    .where(jobs.c.version == models.c.version, models.c.sha256 == bindparam("sha256"))
    .where(jobs.c.state.not_in(ENDED))
)
_WAITED_FOR = (
    select(models.c.sha256)
    .select_from(jobs.join(models, jobs.c.model == models.c.name))
    .where(jobs.c.version == models.c.version, jobs.c.state.not_in(ENDED))
    .where(models.c.deleted_unix.is_(None))
)


def add(connection: Connection, model: ModelVersion, device_keys: str) -> JobRecord:
    now = time.time()
    job = JobRecord(
        secrets.token_hex(8), model.name, model.version, created_unix=now, updated_unix=now
    )
    connection.execute(insert(jobs).values(**_to_row(job), device_keys=device_keys))
    return job


def save(connection: Connection, job: JobRecord) -> None:
    """Store a job's new state. A job that has ended is never changed again."""
    connection.execute(_SAVE, {**_to_row(job), "job_id": job.id})


def end(connection: Connection, job: JobRecord) -> str | None:
    """Store a job's last state; a model that it never made serve is FAILED from then on.

    One that serves without all its schedules says so. Returns the digest of the upload that the job
    was about, unless the model was deleted.
    """
    save(connection, job)
    model = models_table.find(connection, job.model, job.version)
    if model is None:
        return None
    if model.state is ModelStatus.LOADING:
        failed = ModelStatus.FAILED
        models_table.set_state(connection, job.model, job.version, failed, job.message)
    elif model.state is ModelStatus.SERVING and job.state is JobStatus.UNSCHEDULED:
        models_table.set_state(connection, job.model, job.version, model.state, job.message)
    return model.sha256


def request_cancels(connection: Connection, name: str, version: int) -> None:
    """Ask the owners of the jobs of a model version to end them."""
    of_version = jobs.c.model == name, jobs.c.version == version, jobs.c.state.not_in(ENDED)
    connection.execute(update(jobs).where(*of_version).values(cancel_requested=True))


def get(connection: Connection, job_id: str) -> JobRecord:
    row = connection.execute(_GET, {"job_id": job_id}).first()
    if row is None:
        raise JobNotFound(job_id[:100])
    return from_row(row)


def newest(connection: Connection, model: str | None = None, limit: int = 100) -> list[JobRecord]:
    query = _RECORDS.order_by(jobs.c.sequence.desc()).limit(limit)
    if model is not None:
        query = query.where(jobs.c.model == model)
    return [from_row(row) for row in connection.execute(query)]


def last_of(connection: Connection, model: ModelVersion) -> tuple[JobRecord, str] | None:
    """The newest job of a model version, and the devices it was made for."""
    row = connection.execute(_LAST, {"model": model.name, "version": model.version}).first()
    return None if row is None else (from_row(row), row.device_keys)


def unscheduled_in_a_row(connection: Connection, model: ModelVersion) -> int:
    """Number of the newest jobs of a model version that ended UNSCHEDULED, one after the other."""
    states = connection.scalars(
        select(jobs.c.state)
        .where(jobs.c.model == model.name, jobs.c.version == model.version)
        .order_by(jobs.c.sequence.desc())
    )
    return len(list(takewhile(lambda state: state == JobStatus.UNSCHEDULED.value, states)))


def unfinished(connection: Connection) -> list[JobRecord]:
    return [from_row(row) for row in connection.execute(_UNFINISHED)]


def count_by_state(connection: Connection) -> dict[str, int]:
    counts = {state.value: 0 for state in JobStatus}
    counts.update((state, count) for state, count in connection.execute(_COUNTS))
    return counts


def waiting_for(connection: Connection, sha256: str) -> int:
    """Number of jobs not ended whose model was made from this upload."""
    return connection.scalar(_WAITING, {"sha256": sha256}) or 0


def uploads_waited_for(connection: Connection) -> set[str]:
    """Digests of the uploads of all jobs not ended, but for those of deleted models."""
    return set(connection.scalars(_WAITED_FOR))


def forget_oldest(connection: Connection, keep: int) -> None:
    """Delete ended jobs that ``keep`` younger ones follow, so that the table stays bounded."""
    oldest_kept = connection.scalar(
        select(jobs.c.sequence).order_by(jobs.c.sequence.desc()).offset(keep).limit(1)
    )
    if oldest_kept is not None:
        connection.execute(
            delete(jobs).where(jobs.c.sequence <= oldest_kept, jobs.c.state.in_(ENDED))
        )


def _to_row(job: JobRecord) -> dict[str, Any]:
    return {name: getattr(job, name) for name in _FIELDS} | {"state": job.state.value}


def from_row(row: Row[Any]) -> JobRecord:
    fields = {name: getattr(row, name) for name in _FIELDS}
    fields["state"] = JobStatus(row.state)
    return JobRecord(**fields)


def place(connection: Connection, model: ModelVersion, device_keys: str) -> tuple[JobRecord, bool]:
    """Add a job that makes ``model`` serve under its number, whatever had that number before.

    Returns the job, and whether the version serves: then its row stays as it is until the job
    makes the new bytes serve.
    """
    before = models_table.find(connection, model.name, model.version)
    serves = before is not None and before.state is ModelStatus.SERVING
    if not serves:
        models_table.put(connection, replace(model, state=ModelStatus.LOADING))
    put_row(connection, placed, {"name": model.name, "version": model.version})
    return add(connection, model, device_keys), serves
