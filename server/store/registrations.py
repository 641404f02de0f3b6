"""Registrations: an upload becomes a model version and a job, and its files follow it."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from sqlalchemy import Connection

from braid.compiler.options import ModelOptions
from braid.core.errors import PreconditionFailed, ResourceExhausted
from braid.server.store.database.database import Database
from braid.server.store.database.transactions import Transactions
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
    check_model_name,
)
from braid.server.store.tables import jobs as jobs_table
from braid.server.store.tables import models as models_table
from braid.server.store.uploads import Upload

log = logging.getLogger("braid.store")


class Registrations:
    """Part of a store that takes uploads. Used by the store's thread."""

    def __init__(
        self, folder: StoreFolder, database: Database, limits: StoreLimits, node: str = ""
    ) -> None:
        self.folder = folder
        self._quota = Quota(folder.root, limits)
        self._kept_jobs = limits.kept_jobs
        self._disk = DiskWatch(folder.root)
        self._transactions = Transactions(database, node, self.discard_upload)
        # By id of a job that puts other bytes in the place of a version's: their digest.
        self._replacing: dict[str, str] = {}
        self._left_behind: list[Callable[[], None]] = []  # removals that failed

    def receive(self, limit_bytes: int, caller: str = "") -> Upload:
        """Return an upload to enter by ``async with``; caller "" is the server itself."""
        return Upload(self.folder.uploads, limit_bytes, self._quota, self._disk, caller)

    @property
    def receives(self) -> bool:
        return self._quota.has_uploads

    def register(
        self,
        name: str,
        received: ReceivedUpload,
        options: ModelOptions,
        device_keys: str = "",
        version: int | None = None,
    ) -> Registration:
        """Make a model version and its job, or find those that the same registration made.

        When it returns, file and rows are on disk: the job will run, even across a crash.

        Args:
            received: adopted if there is a job to do: it looks whether an import is needed.
            device_keys: of all devices, as one text; a job that was READY for others is not
                taken for an answer.
            version: to be or to make; None: the newest if it is the same, else a new one.

        Raises InvalidRequest, PreconditionFailed (the version exists, or existed, for other bytes
        or options), FilesGone (shared files have to be put again) or DiskFailure.
        """
        check_model_name(name)
        self._adopt(received)
        try:
            registration = self._transactions.write(
                lambda connection: self._register(
                    connection, name, received, options, device_keys, version
                ),
                "models",
            )
        except (PreconditionFailed, ResourceExhausted):
            self.discard_upload(received.sha256)
            self._discard_samples(options.samples)
            raise
        self._keep(received)
        if not registration.is_new_job:
            self.discard_upload(received.sha256)
        return registration

    def place(
        self,
        name: str,
        received: ReceivedUpload,
        options: ModelOptions,
        device_keys: str,
        version: int,
    ) -> Registration:
        """Make a job that makes these bytes serve as a version, whatever that was before.

        What serves stays registered until they do (``serves``), also if they never do. A crash
        before that leaves what was there, and the files where they came from. Raises
        ResourceExhausted, FilesGone or DiskFailure, as ``register``.
        """
        assert received.path is not None
        check_model_name(name)
        self._adopt(received)
        model = ModelVersion(
            name, version, received.sha256, received.size_bytes, options, created_unix=time.time()
        )
        try:
            registration = self._transactions.write(
                lambda connection: self._place(connection, model, device_keys), "models"
            )
        except ResourceExhausted:
            self.discard_upload(received.sha256)
            raise
        self._keep(received)
        if registration.replaces:
            self._replacing[registration.job.id] = model.sha256
        return registration

    def _adopt(self, received: ReceivedUpload) -> None:
        """Rename the files of an upload into place, unless an earlier try did (``FilesGone``)."""
        with self._disk.writing():
            for part, path in self._files_of(received):
                if part is not None and (part.exists() or not path.exists()):
                    self.folder.adopt(part, path)

    def _keep(self, received: ReceivedUpload) -> None:
        for _, path in self._files_of(received):
            keep = partial(self.folder.keep, path)
            self._remove(keep, keep)

    def _files_of(self, received: ReceivedUpload) -> list[tuple[Path | None, Path]]:
        """Files of an upload: where each was received, and where it belongs."""
        files = [(received.path, self.folder.upload(received.sha256))]
        if samples := received.samples:
            files.append((samples.path, self.folder.sample_file(samples.digest)))
        return files

    def _place(self, connection: Connection, model: ModelVersion, device_keys: str) -> Registration:
        if models_table.find(connection, model.name, model.version) is None:
            self._quota.check_models(models_table.count(connection))
        models_table.remember(connection, [model.sha256])
        self._hold_files(connection, model)
        job, replaces = jobs_table.place(connection, model, device_keys)
        if replaces:
            model = replace(model, state=ModelStatus.SERVING)
        return self._granted(connection, Registration(model, job, True, replaces))

    # What servers that share the database do otherwise.

    def _granted(self, connection: Connection, registration: Registration) -> Registration:
        """Return a registration that made a job, with the grant of this server to do it."""
        return registration

    def _last_job(
        self, connection: Connection, model: ModelVersion, device_keys: str
    ) -> tuple[JobRecord, str] | None:
        """Return the job of a version that may be the answer, and the devices it was made for."""
        return jobs_table.last_of(connection, model)

    def _hold_files(self, connection: Connection, model: ModelVersion) -> None:
        """Keep the shared files of an upload, which rows of this transaction need."""

    def _hold_artefact(self, connection: Connection, model: ModelVersion) -> None:
        """Keep what servers share of an artefact, which a row of this transaction needs."""

    def _has_artefact(self, connection: Connection, model: ModelVersion) -> bool:
        return self.folder.has_artefact(model.artefact)

    def _register(
        self,
        connection: Connection,
        name: str,
        received: ReceivedUpload,
        options: ModelOptions,
        device_keys: str,
        version: int | None,
    ) -> Registration:
        models_table.remember(connection, {received.sha256, options.samples} - {""})
        present = models_table.present(connection, name)
        versions = [
            row
            for row in present
            if row.state is not ModelStatus.DRAINING and version in (None, row.version)
        ]
        model = versions[-1] if versions else None
        if model is None or (model.sha256, model.options) != (received.sha256, options):
            self._quota.check_models(models_table.count(connection))
            sha256, size_bytes = received.sha256, received.size_bytes
            imported = [row.own_artefact for row in versions if row.sha256 == sha256]
            own = imported[-1] if imported and received.path is None else ""
            model = models_table.add(connection, name, sha256, size_bytes, options, version, own)
        last = self._last_job(connection, model, device_keys)
        if last is not None and self._still_answers(connection, model, *last, device_keys):
            return Registration(model, last[0], is_new_job=False)
        if model.state.has_failed:
            models_table.set_state(connection, name, model.version, ModelStatus.LOADING)
            model = models_table.get(connection, name, model.version)
        self._hold_files(connection, model)
        return self._add_job(connection, model, device_keys)

    def _add_job(
        self, connection: Connection, model: ModelVersion, device_keys: str
    ) -> Registration:
        job = jobs_table.add(connection, model, device_keys)
        return self._granted(connection, Registration(model, job, is_new_job=True))

    def _still_answers(
        self,
        connection: Connection,
        model: ModelVersion,
        job: JobRecord,
        made_for: str,
        device_keys: str,
    ) -> bool:
        """True if an earlier job is the answer to a registration made again."""
        if not job.state.has_ended:
            return True
        is_there = model.state is ModelStatus.SERVING and self._has_artefact(connection, model)
        return job.state is JobStatus.READY and is_there and made_for == device_keys

    def discard_upload(self, sha256: str, *, is_imported: bool = False) -> None:
        """Remove an upload that is imported, or that no job waits for."""
        still_needed = self._transactions.read(
            lambda connection: jobs_table.waiting_for(connection, sha256), stored_only=True
        )
        still_needed += list(self._replacing.values()).count(sha256)
        if is_imported or not still_needed:
            upload = self.folder.upload(sha256)
            self._remove(lambda: self.folder.remove(upload), partial(self.discard_upload, sha256))

    def discard_artefact(self, key: str) -> None:
        """Remove an artefact that no version has, and no job is about to give one."""
        needed = self._transactions.read(models_table.artefacts, stored_only=True)
        if key not in needed and key not in self._replacing.values():
            again = partial(self.discard_artefact, key)
            self._remove(lambda: self.folder.remove_artefact(key), again)

    def _discard_samples(self, digest: str) -> None:
        if digest and digest not in self._transactions.read(models_table.samples, stored_only=True):
            samples, again = self.folder.sample_file(digest), partial(self._discard_samples, digest)
            self._remove(lambda: self.folder.remove(samples), again)

    def _remove(self, files: Callable[[], None], again: Callable[[], None]) -> None:
        """Remove files without a user, and those that could not be removed before.

        What still cannot, as the disk is full, the next removal tries ``again``, or the next start
        sweeps.
        """
        try:
            files()
        except OSError as error:
            log.warning("files are left behind for now: %s", error.strerror)
            self._left_behind.append(again)
            return
        left, self._left_behind = self._left_behind, []
        for discard in left:
            discard()
