"""Models registered at start, from files that lie beside the server: for containers.

    BRAID_PRELOAD=squeezenet=/mnt/models  ──> the .onnx file in there, registered as squeezenet

The same file registered again is the same version, so that a restart changes nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path

from braid.core.errors import BraidError, StartupError
from braid.server.jobs.runner import JobRunner
from braid.server.store.records import JobStatus, RegistrationOptions
from braid.server.store.store import Store

CHUNK_BYTES = 4 << 20
_NOT_SERVING = (JobStatus.QUEUED, JobStatus.IMPORTING)


async def preload(
    wanted: Sequence[str], store: Store, runner: JobRunner, max_upload_bytes: int
) -> None:
    """Register each ``NAME=PATH``; returns when all of them serve, at least sequentially.

    Raises:
        StartupError: naming the entry that is no model, or that could not be imported.
    """
    jobs = []
    for entry in wanted:
        name, _, path = entry.partition("=")
        try:
            file = model_file(entry, path)
            jobs.append((entry, await _register(name, file, store, runner, max_upload_bytes)))
        except (BraidError, OSError) as error:
            raise StartupError(f"BRAID_PRELOAD={entry!r}: {error}") from error
    for entry, job_id in jobs:
        async for job in runner.watch(job_id):
            if job.state is JobStatus.FAILED:
                raise StartupError(f"BRAID_PRELOAD={entry!r}: {job.message}")
            if job.state not in _NOT_SERVING:
                break


def model_file(entry: str, path: str) -> Path:
    """Return ``path`` if it is a file, else the only .onnx file in that folder.

    Raises:
        StartupError: there is no such file, or there are several.
    """
    place = Path(path)
    if not place.is_dir():
        return place
    found = sorted(place.rglob("*.onnx"))
    if len(found) != 1:
        raise StartupError(
            f"BRAID_PRELOAD={entry!r}: {len(found)} .onnx files lie in {place}, not one; "
            "name the file"
        )
    return found[0]


async def _register(
    name: str, path: Path, store: Store, runner: JobRunner, max_upload_bytes: int
) -> str:
    digest = hashlib.sha256()
    with await asyncio.to_thread(path.open, "rb") as file:
        async with store.receive(max_upload_bytes) as upload:
            while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                digest.update(chunk)
                await upload.write(chunk)
            received = await upload.finish(digest.hexdigest())
            made = await runner.register(name, received, RegistrationOptions())
    return made.job.id
