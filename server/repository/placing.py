"""One version of a model repository, from its folder into service.

Model files: ``VERSION/model.onnx``, zipped with the files of its external data if it names some; or
the same inside a folder ``VERSION/model.onnx/``.
"""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from braid.compiler.imported_model import ImportedModel, read_imported
from braid.core.errors import (
    InvalidRequest,
    InvalidUpload,
    ModelImportError,
    NotFound,
    PreconditionFailed,
    Unavailable,
    UploadTooLarge,
)
from braid.core.own_threads import OwnThreads
from braid.server.jobs.interfaces import CheckImported
from braid.server.jobs.runner import JobRunner
from braid.server.models.first_bytes import FirstBytes
from braid.server.repository.configuration import Configuration
from braid.server.repository.declared import check_declared
from braid.server.repository.folders import VersionFolder
from braid.server.store.records import (
    JobRecord,
    JobStatus,
    ModelStatus,
    ModelVersion,
    ReceivedUpload,
    Registration,
)
from braid.server.store.shared_files import ARTEFACT, Files
from braid.server.store.store import Store
from braid.server.store.uploads import Upload
from braid_client.external_data import ModelFile, with_its_data

AT_ONCE = 4
"""Number of files of a repository that are read at the same time."""

_NOT_SERVING = (JobStatus.QUEUED, JobStatus.IMPORTING)


class Changing(Unavailable):
    """A file changes while it is read: it is looked at again."""


@dataclass(frozen=True, slots=True)
class Placing:
    """Puts versions from their folders into service. Belongs to the event loop."""

    _store: Store
    _files: Files
    _runner: JobRunner
    _max_upload_bytes: int
    reading: OwnThreads = field(default_factory=partial(OwnThreads, "repository", AT_ONCE))
    """Threads that read files of the repository."""
    _copies: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, AT_ONCE))

    async def place(self, name: str, folder: VersionFolder, config: Configuration) -> bool:
        """Let a version serve what its folder holds; returns when it does, sequentially at least.

        A version of these bytes and options stays as it is, also if it is unloaded; what failed is
        tried again. Returns True if something has changed. Raises BraidError (what served before
        does), Changing or OSError.
        """
        file = await self.reading.run(model_file, folder, config.filename)
        if await self.reading.run(file.size_bytes) > self._max_upload_bytes:
            raise UploadTooLarge(self._max_upload_bytes)
        digest = await self.reading.run(file.digest)
        check = partial(check_model, config)
        present = await self._present(name, folder.number)
        if present is not None and present.state is not ModelStatus.FAILED:
            is_ours = (name, folder.number) in await self._store.call(self._store.placed)
            is_same = present.sha256 == digest
            if not (is_ours or is_same):
                raise PreconditionFailed(
                    f"{name} version {folder.number} was registered by a call with other bytes; "
                    "give the folder another number, or delete that version"
                )
            has_options = present.options == config.options or not is_ours
            if is_same and has_options and present.state is not ModelStatus.DAMAGED:
                await self._check_present(present, check)
                return False
        async with self._copies, self._store.receive(self._max_upload_bytes) as upload:
            received = await self._copied(file, digest, upload)
            options = config.options
            registration = await self._runner.place(name, received, options, folder.number, check)
        await self._until_serving(registration, digest)
        return True

    async def _present(self, name: str, number: int) -> ModelVersion | None:
        try:
            row = await self._store.call(self._store.find_model, name, number)
        except NotFound:
            return None
        return None if row.state is ModelStatus.DRAINING else row

    async def _check_present(self, model: ModelVersion, check: CheckImported) -> None:
        """Wait until a version serves that is on its way, and compare it; raises BraidError."""
        if model.state is ModelStatus.LOADING:
            for job in await self._runner.list(model.name):
                if job.version == model.version:
                    registration = Registration(model, job, is_new_job=False)
                    await self._until_serving(registration, model.sha256)
                    break
        if model.state is not ModelStatus.UNLOADED:
            key = model.artefact
            artefact = self._store.folder.artefact(key)
            with self._files.in_use(key):
                await self._files.fetch(ARTEFACT, key)
                check(await asyncio.to_thread(read_imported, key, model.options, artefact))

    async def _until_serving(self, registration: Registration, digest: str) -> None:
        """Wait until these bytes serve, if only for a moment; ModelImportError: they never did."""
        async with aclosing(self._runner.watch(registration.job.id)) as changes:
            async for job in changes:
                if job.state is JobStatus.CANCELLED and await self._has_served(job, digest):
                    return
                if job.state in (JobStatus.FAILED, JobStatus.CANCELLED):
                    raise ModelImportError(job.message)
                if job.state not in _NOT_SERVING:
                    return

    async def _has_served(self, job: JobRecord, digest: str) -> bool:
        """True if the bytes of a job that was cancelled served before that."""
        model = await self._present(job.model, job.version)
        served = (ModelStatus.SERVING, ModelStatus.UNLOADED)
        return model is not None and model.state in served and model.sha256 == digest

    async def _copied(self, file: ModelFile, digest: str, upload: Upload) -> ReceivedUpload:
        """Copy a file whose digest is known. InvalidUpload: no model. Changing: another digest."""
        first, chunks = FirstBytes(), file.chunks()
        is_empty = True
        while (chunk := await self.reading.run(next, chunks, None)) is not None:
            is_empty = False
            first.take(chunk)
            await upload.write(chunk)
        first.end()
        if is_empty:
            raise InvalidUpload("the file is empty")
        try:
            return await upload.finish(digest)
        except InvalidUpload as error:
            raise Changing(str(error)) from error


def check_model(config: Configuration, imported: ImportedModel) -> None:
    """Raise InvalidRequest unless an imported model is as declared, naming what differs."""
    graph, has_batch = imported.graph, bool(config.max_batch_size)
    takes_rows = imported.report.batch is not None or all(
        spec.shape and isinstance(spec.shape[0], str) for spec in graph.inputs.values()
    )
    if has_batch and not takes_rows:
        raise InvalidRequest(
            f"max_batch_size is {config.max_batch_size}, but the model takes no batch: its first "
            "extents are fixed; set it to 0"
        )
    outputs = {name: graph.spec(value) for name, value in graph.outputs.items()}
    check_declared("input", config.interface.inputs, graph.inputs, without_batch=has_batch)
    check_declared("output", config.interface.outputs, outputs, without_batch=has_batch)


def model_file(version: VersionFolder, filename: str) -> ModelFile:
    """Model file of a version's folder, through links; InvalidRequest: none, or incomplete."""
    model = version.path / filename
    if model.is_dir():  # a model that is a folder
        model /= filename
    for path in (version.path, model):
        if path.is_symlink() and not path.exists():
            raise InvalidRequest(f"{path.name} is a link that leads nowhere")
    if not model.exists():
        raise InvalidRequest(
            f"there is no {filename} in there; default_model_filename of config.pbtxt names another"
        )
    if not model.is_file():
        raise InvalidRequest(f"{filename} is no regular file")
    try:
        return with_its_data(model, links=True)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
