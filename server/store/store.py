"""The store: one owner of all persistent state.

Methods without ``async`` block for some milliseconds and run on the store's thread: from the
event loop say ``await store.call(store.find_model, name, version)``. One thread, so they run in
the order they were asked for and never at the same time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial, wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

from sqlalchemy import URL, Connection
from sqlalchemy.exc import DBAPIError

from braid.compiler.result_files import ResultFiles
from braid.compiler.results import Results
from braid.core.errors import (
    DiskFailure,
    InvalidRequest,
    ModelNotFound,
    PreconditionFailed,
    ResourceExhausted,
    StartupError,
    StoreUnavailable,
    Unavailable,
)
from braid.core.schedule import Schedule
from braid.server.store.database.database import Database
from braid.server.store.database.opening import open_database, sqlite_path, usual_url
from braid.server.store.database.sqlite_file import StoredFiles
from braid.server.store.files import StoreFolder
from braid.server.store.quota import StoreLimits
from braid.server.store.records import (
    JobRecord,
    JobStatus,
    ModelStatus,
    ModelVersion,
    Registration,
    ShownNode,
    WhichSchedules,
)
from braid.server.store.registrations import Registrations
from braid.server.store.tables import jobs as jobs_table
from braid.server.store.tables import models as models_table
from braid.server.store.tables import serving

log = logging.getLogger("braid.store")

AGAIN_SECONDS, AGAIN_GROWTH = 300.0, 4.0
"""After a second job ended UNSCHEDULED, a start tries again this much later; then after longer."""

_MADE_FOR_DEVICES = (JobStatus.READY, JobStatus.UNSCHEDULED, JobStatus.FAILED)
"""Ends of the last job of a version that serves; FAILED: other bytes were to take its place."""

P = ParamSpec("P")
T = TypeVar("T")

Query = Callable[Concatenate[Connection, P], T]
ResultsMethod = Callable[Concatenate[Results, P], T]
Method = Callable[Concatenate["Store", P], T]


def read_method(query: Query[P, T]) -> Method[P, T]:
    """Method of the store that makes one query, see its docstring, of what is stored."""

    @wraps(query)
    def method(store: Store, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return store._transactions.read(lambda connection: query(connection, *args, **kwargs))

    return method


def write_method(change: Query[P, T], tells: str = "") -> Method[P, T]:
    """Method of the store that makes one change, see its docstring, in a transaction.

    ``tells`` is what servers that share the database are told to look at.
    """

    @wraps(change)
    def method(store: Store, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return store._transactions.write(
            lambda connection: change(connection, *args, **kwargs), tells
        )

    return method


def of_results(
    asked: ResultsMethod[P, T], tells: str = "", *, writes: bool = False
) -> Method[P, T]:
    """Method of the store that asks its results once, see the docstring; ``tells`` as of others."""

    @wraps(asked)
    def method(store: Store, /, *args: P.args, **kwargs: P.kwargs) -> T:
        def ask(connection: Connection) -> T:
            answer: T = getattr(store._results(connection), asked.__name__)(*args, **kwargs)
            return answer

        if writes:
            return store._transactions.write(ask, tells)
        return store._transactions.read(ask)

    return method


class Store(Registrations):
    """Models, jobs, schedules, measurements, uploads and artefacts of one server."""

    is_revocable = False
    """True: another server may take over the work that this is for; no write succeeds then, and
    ``call`` waits while the database is away."""

    def __init__(
        self, folder: StoreFolder, database: Database, limits: StoreLimits, node: str = ""
    ) -> None:
        super().__init__(folder, database, limits, node)
        self._database = database
        self._result_files = ResultFiles(folder.root)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="braid-store")

    @classmethod
    def open(
        cls,
        root: Path,
        limits: StoreLimits | None = None,
        database: URL | None = None,
        node: str = "",
    ) -> Self:
        """Take the folder, open the database, remove what a crash left behind.

        ``database`` None: SQLite in the folder. ``node``: name among servers that share it. Raises
        StartupError: one line that says what is wrong with the store and what to do.
        """
        folder = StoreFolder(root, sqlite_path(database))
        folder.open()
        url = database or usual_url(folder.database)
        with ExitStack() as opened:
            opened.callback(folder.close)
            try:
                files = StoredFiles(root, folder.whole())
                db = open_database(url, files)
                opened.callback(db.close)
                store = cls(folder, db, limits or StoreLimits(), node)
                store._recover(files)
            except (DBAPIError, OSError, ResourceExhausted, Unavailable) as error:
                raise StartupError(f"the store {root} cannot be used: {error}") from error
            except (ValueError, LookupError, TypeError) as error:
                raise StartupError(
                    f"the store's database {url} is damaged: what a row says cannot be read "
                    f"({type(error).__name__}: {error}); restore it from a backup"
                ) from error
            opened.pop_all()
        return store

    @property
    def database(self) -> Database:
        return self._database

    def close(self) -> None:
        """Finish what was asked for, then let go of the folder."""
        self._thread.shutdown(wait=True)
        with suppress(DiskFailure, StoreUnavailable):
            if self.has_unstored_ends:
                self.store_ends()
        self._database.close()
        self.folder.close()

    async def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking method on the store's thread. It runs even if the caller is cancelled."""
        return await asyncio.wrap_future(self.submit(function, *args, **kwargs))

    def submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Ask for a blocking method to be run on the store's thread, without waiting for it."""
        return self._thread.submit(function, *args, **kwargs)

    def _recover(self, files: StoredFiles) -> None:
        """Finish deletions that a crash cut off; remove unused files. StartupError: none known."""
        recorded = self._transactions.read(models_table.remembered)
        if why := files.why_strange(recorded):
            raise StartupError(f"the store's database {self._database.engine.url} {why}")
        self._transactions.write(self._recover_rows)
        uploads, artefacts, samples = self._transactions.read(_needed_files)
        swept = self.folder.sweep(uploads, artefacts, samples, recorded)
        if names := swept.removed:
            log.info("removed leftovers", extra={"count": len(names), "names": names[:10]})
        if names := swept.unknown:
            facts = {"count": len(names), "names": names[:10], "folder": str(self.folder.root)}
            log.warning(
                "files that the database knows nothing of are left alone: was it restored from an "
                "older backup? else remove them",
                extra=facts,
            )

    def _recover_rows(self, connection: Connection) -> None:
        for model in models_table.present(connection):
            # In a shared database another server may be at it.
            if model.state is ModelStatus.DRAINING and not self._database.is_shared:
                models_table.mark_deleted(connection, model.name, model.version)
        jobs_table.forget_oldest(connection, self._kept_jobs)

    def _results(self, connection: Connection) -> Results:
        """Schedules and measurements; changes of them are those of the connection's transaction.

        Files change before the rows of a transaction do: a crash between the two leaves schedules
        that a job, which was not added, would have made again. They serve, and say so.
        """
        return self._result_files

    # Models.

    models = read_method(models_table.present)
    placed = read_method(models_table.placed_versions)
    find_model = read_method(models_table.get)
    set_model_state = write_method(models_table.set_state, "models")

    def serves(self, model: ModelVersion) -> None:
        """Store that a version serves; the artefact of bytes that it had before is removed.

        With its first time, what the policy of the name does not want beside it is unloaded. Raises
        FilesGone: what servers share of its artefact is gone; it has to be put again.
        """

        def serve(connection: Connection) -> str | None:
            self._hold_artefact(connection, model)
            models_table.remember(connection, [model.artefact])
            stored = models_table.find(connection, model.name, model.version)
            if stored is None:
                return None
            models_table.serves(connection, model)
            if stored.state is ModelStatus.LOADING:
                serving.retire_beside(connection, model)
            return stored.artefact

        before = self._transactions.write(serve, "models")
        if before not in (None, model.artefact):
            self.discard_artefact(before)

    def versions(self, name: str) -> list[ModelVersion]:
        if rows := self.models(name):
            return rows
        raise ModelNotFound(name)

    def delete_model(self, name: str, version: int) -> None:
        """Delete a model version, and its artefact if no other model needs it.

        Schedules and measurements stay, for when the same bytes or stages come back. Raises
        ModelNotFound, VersionNotFound: there is none.
        """

        def delete(connection: Connection) -> tuple[ModelVersion, list[ModelVersion]]:
            model = models_table.get(connection, name, version)
            models_table.mark_deleted(connection, name, version)
            return model, models_table.of_bytes(connection, model.sha256)

        model, others = self._transactions.write(delete, "models")
        if model.artefact not in {other.artefact for other in others}:
            again = partial(self.discard_artefact, model.artefact)
            self._remove(lambda: self.folder.remove_artefact(model.artefact), again)
        if not others:
            again = partial(self.discard_upload, model.sha256)
            self._remove(lambda: self.folder.remove(self.folder.upload(model.sha256)), again)
        self._discard_samples(model.options.samples)

    # How models serve.

    serving_configs = read_method(serving.every)
    put_serving_config = write_method(serving.put, "serving")
    forget_serving_config = write_method(serving.forget, "serving")

    # Requests that are padded.

    padding_failure = read_method(models_table.padding_failure)
    refuse_padding = write_method(models_table.refuse_padding)

    # Jobs.

    jobs = read_method(jobs_table.newest)
    find_job = read_method(jobs_table.get)
    unfinished_jobs = read_method(jobs_table.unfinished)
    count_jobs = read_method(jobs_table.count_by_state)
    save_job = write_method(jobs_table.save, "jobs")

    def add_job(self, model: ModelVersion, device_keys: str) -> Registration:
        return self._transactions.write(
            lambda connection: self._add_job(connection, model, device_keys), "jobs"
        )

    def reschedule(self, device_keys: str) -> None:
        """Add a job for each serving model whose schedules are missing.

        They are missing if its last job was for other devices or ended UNSCHEDULED. After
        UNSCHEDULED the first try comes at once, further ones at growing intervals.
        """
        self._transactions.write(lambda connection: _reschedule(connection, device_keys), "jobs")

    def schedule_again(
        self, name: str, version: int, device_keys: str, which: WhichSchedules, reason: str
    ) -> Registration:
        """Add a job that makes schedules of a version again; they serve until then.

        A job under way is the answer, and nothing is made again. Raises NotFound, InvalidRequest
        (not scheduled for the batch size) or PreconditionFailed (it does not serve).
        """

        def again(connection: Connection) -> Registration:
            model = models_table.get(connection, name, version)
            wanted = _wanted_schedules(self._results(connection), model, which)
            last = self._last_job(connection, model, device_keys)
            if last is not None and not last[0].state.has_ended:
                return Registration(model, last[0], is_new_job=False)
            _check_serves(model)
            self._results(connection).ask_again(wanted, reason)
            return self._add_job(connection, model, device_keys)

        return self._transactions.write(again, "jobs")

    def end_job(self, job: JobRecord) -> ModelVersion | None:
        """Store a job's last state; a model that it never made serve is FAILED from then on.

        If the disk does not take it, every later write tries again, and reads show it already; so
        does ``store_ends``. A crash before that lets the job go on at the next start.

        Returns the model as it is now, or None if it was deleted.
        """
        assert job.state.has_ended
        self._replacing.pop(job.id, None)
        self._transactions.end(job)
        return self._transactions.read(
            lambda connection: models_table.find(connection, job.model, job.version)
        )

    def store_ends(self) -> None:
        """Store the ends of jobs that were not stored; raises DiskFailure or StoreUnavailable."""
        self._transactions.write(lambda _: None)  # each write does

    @property
    def has_unstored_ends(self) -> bool:
        """True if jobs have ended whose end is not on disk."""
        return self._transactions.has_unstored_ends

    # Schedules and measurements.

    put_schedule = of_results(Results.put_schedule, "schedules", writes=True)
    put_graph = of_results(Results.put_graph, writes=True)
    find_graph = of_results(Results.find_graph)
    find_schedule = of_results(Results.find_schedule)
    schedules_of = of_results(Results.schedules_of)
    schedules_for = of_results(Results.schedules_for)
    forget_schedule = of_results(Results.forget_schedule, "schedules", writes=True)
    put_latencies = of_results(Results.put_latencies, writes=True)
    all_latencies = of_results(Results.all_latencies)

    def listed_nodes(self) -> list[ShownNode]:
        """Servers that share the database, with their jobs; none if this server is alone."""
        return []


def _check_serves(model: ModelVersion) -> None:
    remedies = {
        ModelStatus.LOADING: "wait until it does",
        ModelStatus.UNLOADED: "load it first",
        ModelStatus.DRAINING: "it is being deleted",
    }
    if model.state is not ModelStatus.SERVING:
        remedy = remedies.get(model.state, "register its file again")
        raise PreconditionFailed(f"{model.name} version {model.version} does not serve; {remedy}")


def _wanted_schedules(
    results: Results, model: ModelVersion, which: WhichSchedules
) -> list[Schedule]:
    schedules = [
        schedule
        for device_key in dict.fromkeys(which.device_keys)
        for schedule in results.schedules_for(model.sha256, model.options, device_key)
    ]
    size = which.batch_size
    if size is None:
        return schedules
    wanted = [schedule for schedule in schedules if schedule.key.batch_size == size]
    asked = model.options.batch_sizes or sorted({schedule.key.batch_size for schedule in schedules})
    if not wanted and size not in (asked or (1,)):
        sizes = ", ".join(map(str, asked or (1,)))
        raise InvalidRequest(
            f"{model.name} version {model.version} is scheduled for batch sizes {sizes}, "
            f"not for {size}"
        )
    return wanted


def _needed_files(connection: Connection) -> tuple[set[str], set[str], set[str]]:
    present = models_table.present(connection)
    samples = {model.options.samples for model in present} - {""}
    artefacts = {model.artefact for model in present}
    return jobs_table.uploads_waited_for(connection), artefacts, samples


def _reschedule(connection: Connection, device_keys: str) -> None:
    for model in models_table.present(connection):
        last = jobs_table.last_of(connection, model)
        if model.state is not ModelStatus.SERVING or last is None:
            continue
        job, made_for = last
        is_due = job.state in _MADE_FOR_DEVICES and made_for != device_keys
        if job.state is JobStatus.UNSCHEDULED and not is_due:
            tries = jobs_table.unscheduled_in_a_row(connection, model)
            pause_s = 0.0 if tries == 1 else AGAIN_SECONDS * AGAIN_GROWTH ** (tries - 2)
            is_due = time.time() >= job.updated_unix + pause_s
        if is_due:
            jobs_table.add(connection, model, device_keys)
