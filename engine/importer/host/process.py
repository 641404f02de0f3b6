"""An importer process: forked for one request, and asked once.

start ──ask(request)──> reports ──end──> gone with all that it started      one socket pair
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from braid.core.json_form import to_json
from braid.engine.importer.host.messages import MAX_LINE_BYTES
from braid.engine.importer.host.request import ImportRequest
from braid.engine.processes.child import ChildProcess, Stream, Streams

MODULE = "braid.engine.importer.sandbox"
_LARGEST_FILES = 3  # that a sound import writes: a converted model, its data, weights
_MOST_FILES = 200_000  # a zip may hold half of them


@dataclass(frozen=True, slots=True, eq=False)
class ImporterProcess:
    """A confined process that imports one file. Belongs to one event loop."""

    child: ChildProcess
    reports: asyncio.StreamReader
    _link: asyncio.StreamWriter

    @classmethod
    async def start(cls) -> Self:
        """Start a process; ``OSError`` if no process, memory or descriptor is left."""
        with ExitStack() as opened:
            link, theirs = await Stream.open(opened, MAX_LINE_BYTES)
            with theirs:
                child = await ChildProcess.start(
                    MODULE,
                    environment=_environment(),
                    streams=Streams.KEPT,
                    given={"link-fd": theirs.fileno()},
                    folder=Path("/"),
                )
            opened.pop_all()
        return cls(child, link.reader, link.writer)

    def ask(self, request: ImportRequest) -> None:
        """Send the request; a process that has ended is noticed by who reads the reports."""
        upload, artefact = request.upload.absolute(), request.artefact.absolute()
        samples = request.hints.samples.absolute() if request.hints.samples else None
        hints = replace(request.hints, samples=samples)
        request = replace(request, upload=upload, artefact=artefact, hints=hints)
        line = json.dumps(to_json(request)).encode()
        self._link.write(line + b"\n")

    async def end(self) -> None:
        """Kill the process and what it started, if it has not ended; wait for that."""
        try:
            await self.child.end()
        finally:
            self._link.close()


def has_written_too_much(pid: int, request: ImportRequest) -> bool:
    """Counts written bytes, also of removed files; the kernel's limits are by file."""
    with suppress(OSError):  # it has ended
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        counts = [int(line.split()[1]) for line in lines if line.startswith(("wchar", "write_b"))]
        if max(counts) > _LARGEST_FILES * request.limits.file_bytes:
            return True
    left, count = [str(request.artefact.parent)], 0
    while left and count <= _MOST_FILES:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    count += 1
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.ENAMETOOLONG):  # to hide what is in it
                return True
    return count > _MOST_FILES


def _environment() -> dict[str, str]:
    """Environment of an importer: enough of the server's to find libraries."""
    names = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return kept | {
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/nonexistent",  # until the process knows its own folder
        "TMPDIR": "/nonexistent",
        "CUDA_VISIBLE_DEVICES": "",  # the device belongs to its worker
        "LANG": "C.UTF-8",
    }
