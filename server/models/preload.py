"""Models registered at start, from files that lie beside the server: ``braid serve NAME=FILE``.

    BRAID_PRELOAD=squeezenet=/mnt/models  ──> the .onnx file in there, registered as squeezenet

What is registered by a name with equal bytes is not added again, whatever it was registered for.
It answers the requests that name no version, also in place of a newer version.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from braid.compiler.options import ModelOptions
from braid.core.errors import BraidError, InvalidRequest, StartupError
from braid.core.own_threads import OwnThreads
from braid.core.regular_file import check_file
from braid.scheduler.options import PlannerSettings
from braid.server.jobs.runner import JobRunner
from braid.server.store.records import JobStatus, ModelStatus, ModelVersion, check_model_name
from braid.server.store.serving_config import STABLE, ServingConfig
from braid.server.store.store import Store
from braid_client.external_data import ModelFile, with_its_data

log = logging.getLogger("braid.serving")


def check_models(wanted: Sequence[str], awaited: Sequence[str]) -> None:
    """Check names and files before anything is started. StartupError names the first bad one."""
    list(_named_files(wanted))
    for name in set(awaited) - {"*"}:
        _check_name(name, f"BRAID_READY_MODELS={name}")


async def prefer(wanted: Sequence[str], store: Store) -> None:
    """Let the versions of files that are registered answer, from the first request on."""
    reading = OwnThreads("preload", 1)
    configs = await store.call(store.serving_configs)
    for name, file in await reading.run(list, _named_files(wanted)):
        rows = await store.call(store.models, name)
        serving = [row.version for row in rows if row.state is ModelStatus.SERVING]
        named = None
        with suppress(BraidError, OSError):  # which ``preload`` raises
            named = await _registered(name, file, store, reading) if len(serving) > 1 else None
        if named is None or named.version not in serving:
            continue
        config = configs.get(name, ServingConfig())
        before = config.labels.get(STABLE, max(serving))
        if before != named.version:
            await store.call(store.put_serving_config, name, config.answering(named.version))
            facts = {"model": name, "version": named.version, "in_place_of": before}
            log.warning("the file named at start answers", extra=facts)


async def preload(
    wanted: Sequence[str], store: Store, runner: JobRunner, max_upload_bytes: int
) -> list[tuple[str, int]]:
    """Register each ``NAME=PATH``; returns names and versions once all serve, if sequentially."""
    jobs, serving, reading = [], [], OwnThreads("preload", 1)
    for name, file in await reading.run(list, _named_files(wanted)):
        try:
            job_id = await _register(name, file, store, runner, max_upload_bytes, reading)
        except (BraidError, OSError) as error:
            raise StartupError(f"{name}={file}: {error}") from error
        jobs.append((name, file, job_id))
    for name, file, job_id in jobs:
        if job_id is None:
            log.warning("the file named at start stays unloaded", extra={"model": name})
            continue
        async for job in runner.watch(job_id):
            if job.state is JobStatus.FAILED:
                raise StartupError(f"{name}={file}: {job.message}")
            if not job.state.is_before_serving:
                serving.append((name, job.version))
                break
    return serving


def _named_files(wanted: Sequence[str]) -> Iterator[tuple[str, Path]]:
    names = set()
    for entry in wanted:
        name, _, path = entry.partition("=")
        _check_name(name, entry)
        if name in names:
            raise StartupError(f"{entry}: {name} is given twice; name one file for each model")
        names.add(name)
        yield name, model_file(path)


def _check_name(name: str, entry: str) -> None:
    try:
        check_model_name(name)
    except InvalidRequest as error:
        raise StartupError(f"{entry}: {error}") from None


def model_file(path: str) -> Path:
    """Return ``path`` if it is a file, else the only .onnx file in that folder, or StartupError."""
    place = Path(path)
    if place.is_file():
        return place
    if not place.is_dir():
        raise StartupError(f"{path}: no such file")
    files = sorted(place.rglob("*.onnx"))
    if len(files) != 1:
        raise StartupError(f"{path}: {len(files)} .onnx files lie in there, not one; name the file")
    return files[0]


async def _register(
    name: str,
    path: Path,
    store: Store,
    runner: JobRunner,
    max_upload_bytes: int,
    reading: OwnThreads,
) -> str | None:
    """Register a file; returns the id of the job, or None: registered, and unloaded by request."""
    registered = await _registered(name, path, store, reading)
    if registered is not None and registered.state is ModelStatus.UNLOADED:
        return None
    options, version = ModelOptions(planner=PlannerSettings.for_serving()), None
    if registered is not None:
        options, version = registered.options, registered.version
    chunks = (await reading.run(_with_its_data, path)).chunks()
    async with store.receive(max_upload_bytes) as upload:
        while (chunk := await reading.run(next, chunks, None)) is not None:
            await upload.write(chunk)
        received = await upload.finish(None)  # nothing lay between
        registration = await runner.register(name, received, options, version)
    return registration.job.id


async def _registered(
    name: str, path: Path, store: Store, reading: OwnThreads
) -> ModelVersion | None:
    """Newest version of a name with the bytes of a file; None if there is none."""
    file = await reading.run(_with_its_data, path)
    size_bytes = await reading.run(file.size_bytes)
    versions = [
        row
        for row in await store.call(store.models, name)
        if row.state is not ModelStatus.DRAINING
        and (row.size_bytes == size_bytes or (file.data and row.size_bytes > size_bytes))
    ]
    if not versions:
        return None
    digest = await reading.run(file.digest)
    return next((row for row in reversed(versions) if row.sha256 == digest), None)


def _with_its_data(path: Path) -> ModelFile:
    """Return the model file with the files that it names, which may be links, as it may."""
    check_file(path)
    try:
        return with_its_data(path, links=True)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
