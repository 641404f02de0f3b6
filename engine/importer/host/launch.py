"""The server's side of an import: start the process, listen, and clean up whatever happens.

    import_model(upload, artefact) ─────────────> ../sandbox   (own session and limits)
          ▲   JSON lines on a socket (messages.py)  │ writes <artefacts>/.import-XXXX/artefact/
          └── checks the artefact, renames it into place

Guarantees: however the import ends (result, failure, crash, limit, cancellation), the process
group is gone and so is the working folder; the artefact folder appears complete or not at all.
Needs no torch and no onnx.
"""

import asyncio
import errno
import json
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from braid.core.background import to_the_end
from braid.core.disk import disk_failure, sync
from braid.core.errors import DiskFailure, InvalidArtefact, ModelImportError, Unavailable
from braid.core.json_form import to_json
from braid.core.removal import remove_folder
from braid.core.shortage import shortage
from braid.engine.importer.host.messages import (
    MAX_LINE_BYTES,
    MAX_REPORT_BYTES,
    Done,
    Failed,
    MalformedMessage,
    Message,
    OnProgress,
    Progress,
    decode,
)
from braid.engine.importer.host.report import read_report, verify_files
from braid.engine.importer.host.request import (
    NO_HINTS,
    Hints,
    ImportLimits,
    ImportRequest,
    limit_exceeded,
)
from braid.engine.processes.child import ChildEnd, ChildProcess, Stream, Streams
from braid.engine.runtime.memory import says_out_of_memory

_log = logging.getLogger(__name__)

WORK_PREFIX = ".import-"

_LOOK_S = 1.0
_WALL = "it took longer than the wall-clock limit"
_WRITTEN = "it wrote several files of the largest size (bytes), or too many"
_BY_A_LIMIT = {
    "SIGXCPU": ("cpu_seconds", "it used all its CPU seconds"),
    "SIGALRM": ("wall_seconds", _WALL),
    "SIGPROF": (
        "run_seconds",
        "one run of the model on sample inputs used too many CPU seconds; does a loop or a "
        "size follow from what the inputs hold?",
    ),
}
"""By the signal that a limit of the process sends: the limit's name, and what happened."""


class ImporterKilled(ModelImportError, Unavailable):
    """The importer was killed from outside, within its limits; another import may succeed."""


async def import_model(
    upload: Path,
    artefact: Path,
    limits: ImportLimits,
    on_progress: OnProgress,
    hints: Hints = NO_HINTS,
) -> None:
    """Import an uploaded file into the folder ``artefact``, which does not exist yet.

    ``on_progress`` is called with a fraction in [0, 1] and the present step. Cancelling the call
    kills the process and removes what it wrote.

    Raises:
        UnsupportedOperators: naming all of them.
        ImportLimitExceeded: naming the limit and the setting that raises it.
        DiskFailure: the disk is full, read-only or failing.
        SystemShortage: no process can be started, or no file opened, for now.
        ModelImportError: any other reason the file cannot be imported.
    """
    try:
        with _work_folder(artefact.parent) as folder:
            written = folder / "artefact"
            await _import(ImportRequest(upload, written, limits, hints), on_progress)
            await to_the_end(asyncio.to_thread(_accept, written, artefact))
    except (OSError, DiskFailure) as error:
        if failure := disk_failure(error, artefact.parent) or shortage(error):
            raise failure from error
        raise


@contextmanager
def _work_folder(parent: Path) -> Iterator[Path]:
    """Folder for an importer to write into; removed at the end, whatever the importer did to it."""
    temp = tempfile.TemporaryDirectory(prefix=WORK_PREFIX, dir=parent, ignore_cleanup_errors=True)
    folder = Path(temp.name)
    try:
        yield folder
    finally:
        remove_folder(folder, temp.cleanup)


async def _import(request: ImportRequest, on_progress: OnProgress) -> None:
    async with importer_process() as (child, link):
        link.writer.write(_line(request))  # one that has ended is noticed by who reads its reports
        last = await _conversation(child, link.reader, request, on_progress)
    match last:
        case Failed(error):
            raise error
        case Done():
            return
        case _:
            raise _post_mortem(await child.wait(), request.limits)


class ImporterCrashed(ModelImportError):
    """The importer process ended by itself without a result."""


async def _conversation(
    child: ChildProcess,
    reports: asyncio.StreamReader,
    request: ImportRequest,
    on_progress: OnProgress,
) -> Message | None:
    """Return the last message of an importer; None if its process ended without a result.

    Raises ``ImportLimitExceeded``, or ``ModelImportError`` for messages that are no reports.
    """
    limits, clock = request.limits, asyncio.timeout(request.limits.wall_seconds)
    writing = asyncio.create_task(_end_if_too_much(child.pid, request, clock))
    try:
        async with clock:
            verdict = await _listen(reports, on_progress)
            if verdict is None:
                await child.wait()
            return verdict
    except TimeoutError:
        if writing.done():
            raise limit_exceeded("file_bytes", limits, _WRITTEN) from None
        raise limit_exceeded("wall_seconds", limits, _WALL) from None
    except MalformedMessage as error:
        _log.error("the importer sent a malformed report: %s", error)
        raise ModelImportError("the importer failed while reading this model") from error
    finally:
        writing.cancel()


async def _end_if_too_much(pid: int, request: ImportRequest, clock: asyncio.Timeout) -> None:
    while True:
        await asyncio.sleep(_LOOK_S)
        if await asyncio.to_thread(has_written_too_much, pid, request):
            return clock.reschedule(0.0)


async def _listen(reports: asyncio.StreamReader, on_progress: OnProgress) -> Message | None:
    received = 0
    while True:
        try:
            line = await reports.readline()
        except ValueError as error:  # longer than the reader's limit
            raise MalformedMessage("a line without end") from error
        received += len(line)
        if not line:
            return None
        if received > MAX_REPORT_BYTES:
            raise MalformedMessage("too many reports")
        message = decode(line)
        if not isinstance(message, Progress):
            return message
        on_progress(message.fraction, message.step)


def _post_mortem(end: ChildEnd, limits: ImportLimits) -> ModelImportError:
    _log.warning("the importer process: %s; it printed:\n%s", end.text, end.output)
    if end.signal_name in _BY_A_LIMIT:
        limit, how = _BY_A_LIMIT[end.signal_name]
        return limit_exceeded(limit, limits, how)
    if end.signal_name == "SIGKILL":
        how = how_killed(short_of_memory=end.was_memory_short)
        return ImporterKilled(f"the importer was killed (SIGKILL) {how}")
    if says_out_of_memory(end.output) or "MemoryError" in end.output:
        return limit_exceeded("memory_bytes", limits, "it ran out of memory (bytes)")
    how = f"signal {end.signal_name}" if end.signal_name else f"code {end.status}"
    return ImporterCrashed(
        f"the importer crashed on this model ({how}); the file is damaged or triggers a bug in a "
        "library, the server log has the details"
    )


def _accept(written: Path, artefact: Path) -> None:
    """Check what the importer wrote (``ModelImportError``) and put it in its place, durably."""
    try:
        verify_files(written, read_report(written))
    except InvalidArtefact as error:
        _log.error("the importer wrote an unsound artefact: %s", error)
        raise ModelImportError("the importer failed while writing this model") from error
    if artefact.exists():  # another import of the same bytes was faster
        return
    written.rename(artefact)
    sync(artefact.parent)


def how_killed(*, short_of_memory: bool | None) -> str:
    """End of the sentence about an importer that got SIGKILL; None: memory's state is unknown."""
    if short_of_memory is None:
        return (
            "by the kernel because the machine or container ran out of memory, or by another "
            "process; register the file again, and if that ends the same way, lower "
            "BRAID_IMPORT_MEMORY_BYTES or give the server more memory"
        )
    if short_of_memory:
        return (
            "by the kernel, because the machine or container ran out of memory; give it more, or "
            "let imports use less (BRAID_IMPORT_MEMORY_BYTES)"
        )
    return "by another process, not for want of memory; register the file again"


MODULE = "braid.engine.importer.sandbox"
_LARGEST_FILES = 3  # that a sound import writes: a converted model, its data, weights
_MOST_FILES = 200_000  # a zip may hold half of them


@asynccontextmanager
async def importer_process() -> AsyncIterator[tuple[ChildProcess, Stream]]:
    """Start a confined process that imports one file; on the way out, wait for its killed group.

    ``OSError`` if no process, memory or descriptor is left.
    """
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
        async with child:
            yield child, link


def _line(request: ImportRequest) -> bytes:
    upload, artefact = request.upload.absolute(), request.artefact.absolute()
    samples = request.hints.samples.absolute() if request.hints.samples else None
    hints = replace(request.hints, samples=samples)
    request = replace(request, upload=upload, artefact=artefact, hints=hints)
    return json.dumps(to_json(request)).encode() + b"\n"


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
