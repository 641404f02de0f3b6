"""The store: one owner of all persistent state.

    frontend ──opens──> Store ──call──> the store's thread ──> database, files
                          └── receive ──> Upload ──register──> model version + job

Methods without ``async`` block for some milliseconds and run on the store's thread: from the
event loop say ``await store.call(store.find_model, name, version)``. One thread, so they run in
the order they were asked for and never at the same time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from braid.core.errors import (
    DiskFailure,
    ModelNotFound,
    PreconditionFailed,
    ResourceExhausted,
    StartupError,
)
from braid.server.store.disk import DiskWatch
from braid.server.store.files import StoreFolder
from braid.server.store.quota import Quota, StoreLimits
from braid.server.store.records import (
    JobRecord,
    JobStatus,
    ModelStatus,
    ModelVersion,
    ReceivedUpload,
    Registration,
    RegistrationOptions,
    check_model_name,
)
from braid.server.store.tables import jobs as jobs_table
from braid.server.store.tables import models as models_table
from braid.server.store.tables import placed, plans, serving
from braid.server.store.tables.schema import open_database, reading
from braid.server.store.uploads import Upload

log = logging.getLogger("braid.store")

AGAIN_SECONDS, AGAIN_GROWTH = 300.0, 4.0
"""After a second job ended UNSCHEDULED, a start tries again this much later; then after longer."""

_MADE_FOR_DEVICES = (JobStatus.READY, JobStatus.UNSCHEDULED, JobStatus.FAILED)
"""Ends of the last job of a version that serves; FAILED: other bytes were to take its place."""

P = ParamSpec("P")
T = TypeVar("T")

Query = Callable[Concatenate[Connection, P], T]
Method = Callable[Concatenate["Store", P], T]


def _read(query: Query[P, T]) -> Method[P, T]:
    """Method of the store that makes one query, see its docstring, of what is stored."""

    @wraps(query)
    def method(store: Store, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with store._reading() as connection:
            return query(connection, *args, **kwargs)

    return method


def _write(change: Query[P, T]) -> Method[P, T]:
    """Method of the store that makes one change, see its docstring, in a transaction."""

    @wraps(change)
    def method(store: Store, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with store._transaction() as connection:
            return change(connection, *args, **kwargs)

    return method


class Store:
    """Models, jobs, schedules, measurements, uploads and artefacts of one server."""

    def __init__(self, folder: StoreFolder, engine: Engine, limits: StoreLimits) -> None:
        self.folder = folder
        self._quota = Quota(folder.root, limits)
        self._kept_jobs = limits.kept_jobs
        self._engine = engine
        self._readers = reading(engine)
        self._disk = DiskWatch(folder.root)
        # Jobs that have ended, while the disk takes no writes.
        self._unstored: dict[str, JobRecord] = {}
        # By id of a job that puts other bytes in the place of a version's: their digest.
        self._replacing: dict[str, str] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="braid-store")

    @classmethod
    def open(cls, root: Path, limits: StoreLimits | None = None) -> Self:
        """Take the folder, open the database, remove what a crash left behind.

        Raises:
            StartupError: one line that says what is wrong with the store and what to do.
        """
        folder = StoreFolder(root)
        folder.open()
        try:
            database = open_database(f"sqlite:///{folder.database}", root)
            store = cls(folder, database, limits or StoreLimits())
            store._recover()
        except StartupError:
            folder.close()
            raise
        except (DBAPIError, OSError, ResourceExhausted) as error:
            folder.close()
            raise StartupError(f"the store {root} cannot be used: {error}") from error
        return store

    def close(self) -> None:
        """Finish what was asked for, then let go of the folder."""
        self._thread.shutdown(wait=True)
        with suppress(DiskFailure):
            if self.has_unstored_ends:
                self.store_ends()
        self._engine.dispose()
        self.folder.close()

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking method on the store's thread. It runs even if the caller is cancelled."""
        return await asyncio.wrap_future(self.submit(function, *args, **kwargs))

    def submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Ask for a blocking method to be run on the store's thread, without waiting for it."""
        return self._thread.submit(function, *args, **kwargs)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Open a transaction, which stores ends of jobs that could not be stored before, too.

        Raises:
            DiskFailure: the disk is full, read-only or failing.
        """
        ends = list(self._unstored.values())
        with self._disk.writing(), self._engine.begin() as connection:
            uploads = [jobs_table.end(connection, job) for job in ends]
            yield connection
        for job in ends:
            del self._unstored[job.id]
        for sha256 in {digest for digest in uploads if digest is not None}:
            self.discard_upload(sha256)

    @contextmanager
    def _reading(self, *, stored_only: bool = False) -> Iterator[Connection]:
        """Open a view of what is stored, and of the ends of jobs that could not be stored yet.

        Raises:
            DiskFailure: the disk fails.
        """
        with self._disk.reading(), self._readers.connect() as connection:
            with suppress(DBAPIError):  # read-only: they are not shown
                for job in () if stored_only else self._unstored.values():
                    jobs_table.end(connection, job)
            yield connection
            connection.rollback()

    def _recover(self) -> None:
        """Finish deletions that a crash cut off; remove unused files and impossible latencies."""
        with self._transaction() as connection:
            for model in models_table.present(connection):
                if model.state is ModelStatus.DRAINING:
                    models_table.mark_deleted(connection, model.name, model.version)
                    placed.forget(connection, model.name, model.version)
            jobs_table.forget_oldest(connection, self._kept_jobs)
            impossible = plans.drop_impossible(connection)
            needed = models_table.digests(connection)
            waiting = {digest for digest in needed if jobs_table.waiting_for(connection, digest)}
            samples = models_table.samples(connection)
        removed = self.folder.sweep(uploads=waiting, artefacts=needed, samples=samples)
        if impossible:
            log.info("removed latencies of zero, to be measured again", extra={"count": impossible})
        if removed:
            log.info("removed leftovers", extra={"count": len(removed), "names": removed[:10]})

    # Registrations.

    def receive(self, limit_bytes: int, caller: str = "") -> Upload:
        """Return an upload to enter by ``async with``; caller "" is the server itself."""
        return Upload(self.folder.uploads, limit_bytes, self._quota, self._disk, caller)

    def register(
        self,
        name: str,
        received: ReceivedUpload,
        options: RegistrationOptions,
        device_keys: str = "",
        version: int | None = None,
    ) -> Registration:
        """Make a model version and its job, or find those that the same registration made.

        When it returns, file and rows are on disk: the job will run, even across a crash.

        Args:
            name: checked here.
            received: adopted if there is a job to do: it looks whether an import is needed.
            options: what to schedule for.
            device_keys: of all devices, as one text; a job that was READY for others is not
                taken for an answer.
            version: to be or to make; None: the newest if it is the same, else a new one.

        Raises:
            InvalidRequest: the name is not one.
            PreconditionFailed: the version exists, or existed, for other bytes or options.
            DiskFailure: the disk is full, read-only or failing.
        """
        check_model_name(name)
        if received.path is not None:
            with self._disk.writing():
                self.folder.adopt_upload(received.path, received.sha256)
        if received.samples is not None:
            with self._disk.writing():
                self.folder.adopt_samples(received.samples.path, received.samples.digest)
        try:
            made = self._register(name, received, options, device_keys, version)
        except (PreconditionFailed, ResourceExhausted):
            self.discard_upload(received.sha256)
            self._discard_samples(options.samples)
            raise
        if not made.is_new_job:
            self.discard_upload(received.sha256)
        return made

    def place(
        self,
        name: str,
        received: ReceivedUpload,
        options: RegistrationOptions,
        device_keys: str,
        version: int,
    ) -> Registration:
        """Make a job that makes these bytes serve as a version, whatever that was before.

        What serves stays registered until they do (``serves``), also if they never do. A crash
        before that leaves what was there, and the files where they came from.

        Raises:
            ResourceExhausted: there may be no version more.
            DiskFailure: the disk is full, read-only or failing.
        """
        assert received.path is not None
        check_model_name(name)
        with self._disk.writing():
            self.folder.adopt_upload(received.path, received.sha256)
        model = ModelVersion(
            name, version, received.sha256, received.size_bytes, options, created_unix=time.time()
        )
        try:
            with self._transaction() as connection:
                if models_table.find(connection, name, version) is None:
                    self._quota.check_models(len(models_table.present(connection)))
                job, replaces = placed.place(connection, model, device_keys)
        except ResourceExhausted:
            self.discard_upload(received.sha256)
            raise
        if replaces:
            model = replace(model, state=ModelStatus.SERVING)
            self._replacing[job.id] = model.sha256
        return Registration(model, job, is_new_job=True, replaces=replaces)

    placed = _read(placed.every)

    def _register(
        self,
        name: str,
        received: ReceivedUpload,
        options: RegistrationOptions,
        device_keys: str,
        version: int | None,
    ) -> Registration:
        with self._transaction() as connection:
            present = models_table.present(connection, name)
            versions = [
                one
                for one in present
                if one.state is not ModelStatus.DRAINING and version in (None, one.version)
            ]
            model = versions[-1] if versions else None
            if model is None or (model.sha256, model.options) != (received.sha256, options):
                self._quota.check_models(len(models_table.present(connection)))
                sha256, size_bytes = received.sha256, received.size_bytes
                model = models_table.add(connection, name, sha256, size_bytes, options, version)
            last = jobs_table.last_of(connection, model)
            if last is not None and self._still_answers(model, *last, device_keys):
                return Registration(model, last[0], is_new_job=False)
            if model.state.has_failed:
                models_table.set_state(connection, name, model.version, ModelStatus.LOADING)
                model = models_table.get(connection, name, model.version)
            return Registration(
                model, jobs_table.add(connection, model, device_keys), is_new_job=True
            )

    def _still_answers(
        self, model: ModelVersion, job: JobRecord, made_for: str, device_keys: str
    ) -> bool:
        """True if an earlier job is the answer to a registration made again."""
        if not job.state.has_ended:
            return True
        is_there = model.state is ModelStatus.SERVING and self.folder.has_artefact(model.sha256)
        return job.state is JobStatus.READY and is_there and made_for == device_keys

    def discard_upload(self, sha256: str, *, is_imported: bool = False) -> None:
        """Remove an upload that is imported, or that no job waits for."""
        with self._reading(stored_only=True) as connection:
            still_needed = jobs_table.waiting_for(connection, sha256)
        still_needed += list(self._replacing.values()).count(sha256)
        if is_imported or not still_needed:
            self._remove(lambda: self.folder.upload(sha256).unlink(missing_ok=True))

    def _discard_samples(self, digest: str) -> None:
        """Remove samples that no model version needs."""
        with self._reading(stored_only=True) as connection:
            needed = models_table.samples(connection)
        if digest and digest not in needed:
            self._remove(lambda: self.folder.sample_file(digest).unlink(missing_ok=True))

    def _remove(self, files: Callable[[], None]) -> None:
        """Remove files without a user; what cannot be removed now, the next start sweeps."""
        try:
            files()
        except OSError as error:
            log.warning("files are left behind: %s", error.strerror)

    # Models.

    models = _read(models_table.present)
    find_model = _read(models_table.get)
    set_model_state = _write(models_table.set_state)

    def serves(self, model: ModelVersion) -> None:
        """Store that a version serves; the artefact of bytes that it had before is removed."""
        with self._transaction() as connection:
            before = models_table.serves(connection, model)
        if before not in (None, model.sha256):
            self.discard_artefact(before)

    def discard_artefact(self, sha256: str) -> None:
        """Remove an artefact that no version has, and no job is about to give one."""
        with self._reading(stored_only=True) as connection:
            needed = models_table.digests(connection)
        if sha256 not in needed and sha256 not in self._replacing.values():
            self._remove(lambda: self.folder.remove_artefact(sha256))

    def versions(self, name: str) -> list[ModelVersion]:
        """All versions of one model, oldest first.

        Raises:
            ModelNotFound: nothing is registered under the name.
        """
        if found := self.models(name):
            return found
        raise ModelNotFound(name)

    def delete_model(self, name: str, version: int) -> None:
        """Delete a model version, and its artefact if no other model needs it.

        Schedules and measurements stay, for when the same bytes or stages come back.

        Raises:
            ModelNotFound, VersionNotFound: there is none.
        """
        with self._transaction() as connection:
            model = models_table.get(connection, name, version)
            models_table.mark_deleted(connection, name, version)
            placed.forget(connection, name, version)
            needed = models_table.digests(connection)
        if model.sha256 not in needed:
            self._remove(lambda: self.folder.remove_artefact(model.sha256))
            self._remove(lambda: self.folder.upload(model.sha256).unlink(missing_ok=True))
        self._discard_samples(model.options.samples)

    # How models serve.

    serving_configs = _read(serving.every)
    put_serving_config = _write(serving.put)
    forget_serving_config = _write(serving.forget)

    # Jobs.

    jobs = _read(jobs_table.newest)
    find_job = _read(jobs_table.get)
    unfinished_jobs = _read(jobs_table.unfinished)
    count_jobs = _read(jobs_table.count_by_state)
    add_job = _write(jobs_table.add)
    save_job = _write(jobs_table.save)

    def reschedule(self, device_keys: str) -> None:
        """Add a job for each serving model whose schedules are missing.

        They are if its last job was for other devices, or ended UNSCHEDULED; then they are tried
        again at longer and longer intervals, the first time at once.
        """
        with self._transaction() as connection:
            for model in models_table.present(connection):
                last = jobs_table.last_of(connection, model)
                if model.state is not ModelStatus.SERVING or last is None:
                    continue
                job, made_for = last
                is_due = job.state is JobStatus.UNSCHEDULED and _is_due(
                    job, jobs_table.unscheduled_in_a_row(connection, model)
                )
                if is_due or (job.state in _MADE_FOR_DEVICES and made_for != device_keys):
                    jobs_table.add(connection, model, device_keys)

    def profile_again(
        self, name: str, version: int, device_keys: str, devices: Sequence[str]
    ) -> Registration:
        """Drop a model version's schedules and the measurements they rest on, and add a job.

        Dropped is every measurement of these devices that is no younger than the schedules: if
        they have changed, none of those holds. A job under way is the answer, and nothing is
        dropped.

        Raises:
            ModelNotFound, VersionNotFound: there is none.
            PreconditionFailed: it is being deleted.
        """
        with self._transaction() as connection:
            model = models_table.get(connection, name, version)
            if model.state is ModelStatus.DRAINING:
                raise PreconditionFailed(f"{name} version {version} is being deleted")
            last = jobs_table.last_of(connection, model)
            if last is not None and not last[0].state.has_ended:
                return Registration(model, last[0], is_new_job=False)
            for device_key in devices:
                plans.forget_profile(connection, model.sha256, device_key)
            return Registration(
                model, jobs_table.add(connection, model, device_keys), is_new_job=True
            )

    def end_job(self, job: JobRecord) -> ModelVersion | None:
        """Store a job's last state; a model that it never made serve is FAILED from then on.

        If the disk does not take it, every later write tries again, and reads show it already; so
        does ``store_ends``. A crash before that lets the job go on at the next start.

        Returns the model as it is now, or None if it was deleted.
        """
        assert job.state.has_ended
        self._replacing.pop(job.id, None)
        self._unstored[job.id] = job
        try:
            self.store_ends()
        except DiskFailure:
            pass  # logged
        except BaseException:
            self._unstored.pop(job.id, None)
            raise
        with self._reading() as connection:
            return models_table.find(connection, job.model, job.version)

    def store_ends(self) -> None:
        """Store the ends of jobs that could not be stored so far.

        Raises:
            DiskFailure: it still cannot be.
        """
        with self._transaction():
            pass  # each transaction does

    @property
    def has_unstored_ends(self) -> bool:
        """True if jobs have ended whose end is not on disk."""
        return bool(self._unstored)

    # Schedules and measurements.

    put_schedule = _write(plans.put_schedule)
    put_graph = _write(plans.put_graph)
    find_graph = _read(plans.find_graph)
    find_schedule = _read(plans.find_schedule)
    schedules_of = _read(plans.schedules_of)
    forget_schedule = _write(plans.forget_schedule)
    put_latency = _write(plans.put_latency)
    find_latencies = _read(plans.find_latencies)


def _is_due(job: JobRecord, tries: int) -> bool:
    """True if a model whose last ``tries`` jobs ended UNSCHEDULED is to be scheduled again now."""
    pause_s = 0.0 if tries == 1 else AGAIN_SECONDS * AGAIN_GROWTH ** (tries - 2)
    return time.time() >= job.updated_unix + pause_s
