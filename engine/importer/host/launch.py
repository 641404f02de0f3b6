"""The server's side of an import: start the process, listen, and clean up whatever happens.

    import_model(upload, artefact) ──spawn──> ../sandbox   (own session and limits)
          ▲   JSON lines on a pipe (messages.py)   │ writes <artefacts>/.import-XXXX/artefact/
          └── checks the artefact, renames it into place

Guarantees: however the import ends (result, failure, crash, limit, cancellation), the process
group is gone and so is the working folder; the artefact folder appears complete or not at all.
Needs no torch and no onnx.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from braid.core.disk import disk_failure
from braid.core.errors import DiskFailure, InvalidArtefact, ModelImportError, Unavailable
from braid.core.python_process import python_command, python_environment
from braid.engine.importer.host.killed import how_killed, oom_kills
from braid.engine.importer.host.limits import ImportLimits, limit_exceeded
from braid.engine.importer.host.messages import (
    MAX_LINE_BYTES,
    MAX_REPORT_BYTES,
    Done,
    Failed,
    MalformedMessage,
    Message,
    Progress,
    decode,
)
from braid.engine.importer.host.report import read_report, sync_folder, verify_files
from braid.engine.runtime.out_of_memory import says_out_of_memory

_log = logging.getLogger(__name__)

WORK_PREFIX = ".import-"
_LOG_TAIL_BYTES = 8 << 10

OnProgress = Callable[[float, str], None]


class ImporterKilled(ModelImportError, Unavailable):
    """The importer was ended by the kernel or a person, within its limits; another may succeed."""


async def import_model(
    upload: Path,
    artefact: Path,
    limits: ImportLimits,
    on_progress: OnProgress,
    example_shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> None:
    """Import an uploaded file into the folder ``artefact``.

    Args:
        upload: the file; read only.
        artefact: must not exist yet; its parent must.
        limits: enforced on the importer process.
        on_progress: called with a fraction in [0, 1] and the present step.
        example_shapes: shapes to verify at, by input, for models with open extents.

    Raises:
        UnsupportedOperators: naming all of them.
        ImportLimitExceeded: naming the limit and the setting that raises it.
        DiskFailure: the disk is full, read-only or failing.
        ModelImportError: any other reason the file cannot be imported.

    Cancelling the call kills the process and removes what it wrote.
    """
    try:
        await _import(upload, artefact, limits, on_progress, example_shapes or {})
    except (OSError, DiskFailure) as error:
        if failure := disk_failure(error, artefact.parent):
            raise failure from error
        raise


async def _import(
    upload: Path,
    artefact: Path,
    limits: ImportLimits,
    on_progress: OnProgress,
    example_shapes: Mapping[str, tuple[int, ...]],
) -> None:
    with tempfile.TemporaryDirectory(
        prefix=WORK_PREFIX, dir=artefact.parent, ignore_cleanup_errors=True
    ) as folder:
        work = Path(folder)
        request = _request(upload, work / "artefact", limits, example_shapes)
        async with _process(work, request) as running:
            last = await _conversation(running, limits, on_progress)
        match last:
            case Failed(error):
                raise error
            case Done():
                await _to_the_end(asyncio.to_thread(_accept, work / "artefact", artefact))
            case _:
                raise _post_mortem(running, limits)


def _request(
    upload: Path, written: Path, limits: ImportLimits, shapes: Mapping[str, tuple[int, ...]]
) -> Mapping[str, object]:
    return {
        "upload": str(upload.absolute()),
        "artefact": str(written.absolute()),
        "limits": limits.to_json(),
        "example_shapes": {name: list(shape) for name, shape in shapes.items()},
    }


class ImporterCrashed(ModelImportError):
    """The importer process ended by itself, without a verdict."""


class _Running:
    """An importer process, the pipe it reports on, and the end of what it printed."""

    def __init__(self, process: asyncio.subprocess.Process, reports: asyncio.StreamReader) -> None:
        self.process = process
        self.reports = reports
        self.tail = bytearray()
        self.oom_kills = oom_kills()  # on this machine, before

    async def drain_output(self) -> None:
        """Keep the last bytes of what libraries print, and drop the rest."""
        assert self.process.stdout is not None
        while chunk := await self.process.stdout.read(4096):
            self.tail += chunk
            del self.tail[:-_LOG_TAIL_BYTES]

    def kill(self) -> None:
        """End the process and everything in its group."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return  # nothing is left of the group


@asynccontextmanager
async def _process(work: Path, request: Mapping[str, object]) -> AsyncIterator[_Running]:
    """Start an importer; on the way out, kill its group and wait for its end."""
    read_end, write_end = os.pipe()
    transport = None
    try:
        reports = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reports), os.fdopen(read_end, "rb", 0)
        )
        process = await asyncio.create_subprocess_exec(
            *python_command("braid.engine.importer.sandbox"),
            *(f"--report-fd={write_end}", f"--parent={os.getpid()}", json.dumps(request)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=(write_end,),
            start_new_session=True,
            cwd=work,
            env=_environment(work),
        )
    except BaseException:
        if transport is not None:
            transport.close()
        raise
    finally:
        os.close(write_end)
    running = _Running(process, reports)
    output = asyncio.create_task(running.drain_output())
    try:
        yield running
    finally:
        running.kill()
        transport.close()
        await _to_the_end(_wait(process, output))


async def _to_the_end(work: Coroutine[None, None, None]) -> None:
    """Await ``work`` even if cancelled meanwhile, and only then be cancelled.

    The working folder is removed after that, so nothing may still be using it.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.shield(task)
        raise


async def _wait(process: asyncio.subprocess.Process, output: asyncio.Task[None]) -> None:
    await process.wait()
    await output


def _environment(work: Path) -> dict[str, str]:
    """What the importer sees of the server's environment: enough to find its libraries."""
    names = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return python_environment(kept) | {
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(work),
        "TMPDIR": str(work),
        "CUDA_VISIBLE_DEVICES": "",  # the device belongs to its worker
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",  # no spinning beside inference
        "LANG": "C.UTF-8",
    }


async def _conversation(
    running: _Running, limits: ImportLimits, on_progress: OnProgress
) -> Message | None:
    """Follow the reports to the last one. None: the process ended without a verdict.

    Raises:
        ImportLimitExceeded: the wall clock ran out.
        ModelImportError: the process sent something else than reports.
    """
    try:
        async with asyncio.timeout(limits.wall_seconds):
            verdict = await _listen(running.reports, on_progress)
            if verdict is None:
                await running.process.wait()
            return verdict
    except TimeoutError:
        raise limit_exceeded(
            "wall_seconds", limits, "it took longer than the wall-clock limit"
        ) from None
    except MalformedMessage as error:
        _log.error("the importer sent a malformed report: %s", error)
        raise ModelImportError("the importer failed while reading this model") from error


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


def _post_mortem(running: _Running, limits: ImportLimits) -> ModelImportError:
    """Explain a process that ended without a verdict."""
    code = running.process.returncode
    tail = running.tail.decode(errors="replace")
    _log.warning(
        "importer process %d ended with %s; it printed:\n%s", running.process.pid, code, tail
    )
    if code == -signal.SIGXCPU:
        return limit_exceeded("cpu_seconds", limits, "it used all its CPU seconds")
    if code == -signal.SIGALRM:
        return limit_exceeded("wall_seconds", limits, "it took longer than the wall-clock limit")
    if code == -signal.SIGPROF:
        return limit_exceeded(
            "run_seconds",
            limits,
            "one run of the model on sample inputs used too many CPU seconds; does a loop or a "
            "size follow from what the inputs hold?",
        )
    if code == -signal.SIGKILL:
        how = how_killed(running.oom_kills, oom_kills())
        return ImporterKilled(f"the importer was killed (SIGKILL) {how}")
    if says_out_of_memory(tail) or "MemoryError" in tail:
        return limit_exceeded("memory_bytes", limits, "it ran out of memory (bytes)")
    how = (
        f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"code {code}"
    )
    return ImporterCrashed(
        f"the importer crashed on this model ({how}); the file is damaged or triggers a bug in a "
        "library, the server log has the details"
    )


def _accept(written: Path, artefact: Path) -> None:
    """Check what the importer wrote and put it in its place, durably.

    Raises:
        ModelImportError: the files do not match their report.
    """
    try:
        verify_files(written, read_report(written))
    except InvalidArtefact as error:
        _log.error("the importer wrote an unsound artefact: %s", error)
        raise ModelImportError("the importer failed while writing this model") from error
    if artefact.exists():  # another import of the same bytes was faster
        return
    written.rename(artefact)
    sync_folder(artefact.parent)
