"""The importer on one file, in a forked child with the importer's own limits.

A fork of a process that has the libraries loaded takes milliseconds, a real importer seconds. The
child does what ``python -m braid.engine.importer.sandbox`` does, its limits included; the parent
only waits.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from braid.core.child_process import end_with_parent
from braid.core.errors import ModelImportError
from braid.engine.importer.artefact import load_artefact
from braid.engine.importer.host.request import GIB, ImportLimits, ImportRequest
from braid.engine.importer.sandbox import pipeline
from braid.engine.importer.sandbox.__main__ import _as_import_error
from braid.engine.importer.sandbox.confinement import confine
from braid.engine.importer.upload.uploaded_model import open_upload
from braid.engine.importer.verification import verify
from braid.engine.importer.verification.example_inputs import Trials, find_example
from braid.engine.importer.verification.verify import Disagreement

LIMITS = ImportLimits(memory_bytes=6 * GIB, cpu_seconds=60, wall_seconds=90, file_bytes=GIB)
_HANG_SECONDS = 130.0  # the limits must have ended it by then
_IMPORTED, _REFUSED, _ODD, _WRONG = 0, 10, 11, 12


@dataclass(frozen=True)
class Outcome:
    """How an import ended."""

    kind: str  # imported, refused, odd (no proper error), wrong, contained (a signal), hung
    detail: str = ""

    @property
    def is_finding(self) -> bool:
        """True for what must not happen: a wrong number, or an import that outlives its limits."""
        return self.kind in ("wrong", "hung")


def run_importer(data: bytes) -> Outcome:
    """Import ``data``; never raises on its account."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "upload").write_bytes(data)
        child = os.fork()
        if child == 0:
            _child(folder)
        status = _awaited(child)
        note = folder / "note"
        detail = note.read_text(errors="replace") if note.exists() else ""
        shutil.rmtree(folder / "artefact", ignore_errors=True)
    if status is None:
        return Outcome("hung", f"still running after {_HANG_SECONDS:.0f} s")
    if os.WIFSIGNALED(status):
        return Outcome("contained", signal.Signals(os.WTERMSIG(status)).name)
    kinds = {_IMPORTED: "imported", _REFUSED: "refused", _ODD: "odd", _WRONG: "wrong"}
    return Outcome(kinds.get(os.WEXITSTATUS(status), "contained"), detail)


def _awaited(child: int) -> int | None:
    deadline = time.monotonic() + _HANG_SECONDS
    pause = 0.001
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(pause)
        pause = min(0.05, pause * 1.5)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _child(folder: Path) -> None:
    """Confine, import, say how it went by the exit code, and end without cleaning up."""
    gc.freeze()  # what gRPC has left behind in the parent must not be freed here: it may never end
    code, note = _ODD, ""
    try:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)
        os.dup2(devnull, 2)
        os.chdir(folder)
        end_with_parent(os.getppid())
        confine(LIMITS, folder)
        code, note = _import(folder)
    except ModelImportError as error:
        code, note = _REFUSED, str(error)
    except BaseException as error:
        code = _ODD
        note = f"{type(error).__name__}: {error}"
        if isinstance(error, Exception):
            proper = _as_import_error(error, LIMITS)
            code = _ODD if "is a bug" in str(proper) else _REFUSED
    finally:
        try:
            (folder / "note").write_text(note[:2000])
        finally:
            os._exit(code)


def _import(folder: Path) -> tuple[int, str]:
    """Import, then compare once more with content of other seeds."""
    upload, artefact = folder / "upload", folder / "artefact"
    source = open_upload(upload, folder)
    pipeline.import_upload(source, ImportRequest(upload, artefact, LIMITS), lambda *_: None)
    loaded = load_artefact(artefact)
    trials = Trials(loaded.graph, loaded.weights, source.reference(), GIB)
    example = find_example(trials, loaded.report.example_shapes)
    subject = verify.Subject(loaded.graph, loaded.weights, example, GIB)
    inputs = example.draw(None, seed=1234)
    try:
        got = verify.run(*subject.specialised(None), inputs)
        verify._agree(subject, source.reference(), inputs, None, got)
    except Disagreement as error:
        return _WRONG, str(error)
    except Exception:  # content that neither takes: the import has seen other content
        return _IMPORTED, ""
    return _IMPORTED, ""
