"""An importer process: started for one request, or ahead of it as a spare, and asked once.

    start ──ask(request)──> reports ──end──> gone with all that it started      one socket pair
      └─ as a spare: loads its libraries, which takes seconds, and waits for its request

A spare is a process like any other, whose request comes later.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from braid.core.descriptors import connect
from braid.core.json_form import to_json
from braid.engine.importer.host.messages import MAX_LINE_BYTES
from braid.engine.importer.host.request import ImportRequest
from braid.engine.processes.child import ChildProcess, Streams

log = logging.getLogger("braid.import")

MODULE = "braid.engine.importer.sandbox"


@dataclass(frozen=True, slots=True, eq=False)
class ImporterProcess:
    """A confined process that imports one file. Belongs to one event loop."""

    child: ChildProcess
    reports: asyncio.StreamReader
    _link: asyncio.Transport

    @classmethod
    async def start(cls) -> Self:
        """Start a process.

        Raises:
            OSError: no process, memory or descriptor is left.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            reports = asyncio.StreamReader(limit=MAX_LINE_BYTES)
            link, _ = await connect(lambda: _Reports(reports), ours)
            try:
                child = await ChildProcess.start(
                    MODULE,
                    f"--link-fd={theirs.fileno()}",
                    environment=_environment(),
                    streams=Streams.KEPT,
                    pass_fds=(theirs.fileno(),),
                    folder=Path("/"),
                )
            except BaseException:
                link.close()
                raise
        return cls(child, reports, link)

    def ask(self, request: ImportRequest) -> None:
        """Send the request; a process that has ended is noticed by who reads the reports."""
        upload, artefact = request.upload.absolute(), request.artefact.absolute()
        samples = request.samples.absolute() if request.samples else None
        request = replace(request, upload=upload, artefact=artefact, samples=samples)
        line = json.dumps(to_json(request)).encode()
        self._link.write(line + b"\n")

    async def end(self) -> None:
        """Kill the process and what it started, if it has not ended; wait for that."""
        try:
            await self.child.end()
        finally:
            self._link.close()


class _Reports(asyncio.StreamReaderProtocol):
    """Feeds a reader, for which a process that was killed is one whose reports have ended."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(None)


class SpareImporter:
    """An importer process that is started before it is needed. Belongs to one event loop."""

    def __init__(self) -> None:
        self._starting: asyncio.Task[ImporterProcess] | None = None
        self._is_closed = False

    def prepare(self) -> None:
        """Begin to start a process, unless one is there."""
        if self._is_closed or (self._starting is not None and not _has_failed(self._starting)):
            return
        self._starting = asyncio.create_task(ImporterProcess.start(), name="spare")

    async def take(self) -> ImporterProcess | None:
        """Hand over the process, which may still be loading; None if there is none."""
        starting, self._starting = self._starting, None
        if starting is None:
            return None
        try:
            process = await asyncio.shield(starting)
        except OSError as error:
            log.warning("no spare importer could be started: %s", error)
            return None
        except asyncio.CancelledError:
            self._starting = starting
            raise
        if process.child.has_ended:
            await process.end()
            return None
        process.child.count_from_now()
        return process

    async def close(self) -> None:
        """End the process; no other one is started."""
        self._is_closed = True
        process = await self.take()
        if process is not None:
            await process.end()


def _has_failed(starting: asyncio.Task[ImporterProcess]) -> bool:
    return starting.done() and starting.exception() is not None


def _environment() -> dict[str, str]:
    """Environment of an importer: enough of the server's to find libraries."""
    names = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return kept | {
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/nonexistent",  # until the process knows its own folder
        "TMPDIR": "/nonexistent",
        "CUDA_VISIBLE_DEVICES": "",  # the device belongs to its worker
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",  # no spinning beside inference
        "LANG": "C.UTF-8",
    }
