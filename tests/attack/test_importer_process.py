"""The confinement of the very process that the server starts, with hostile code in a library."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from braid.core.errors import ImportLimitExceeded, ModelImportError
from braid.engine.importer.host import launch
from braid.engine.importer.host.launch import import_model
from braid.engine.importer.host.request import ImportLimits
from tests import ROOT
from tests.models.bad_onnx import cycle

STAND_IN = """
import sys
from pathlib import Path
here = str(Path(__file__).parent.parent)
sys.path.remove(here)
del sys.modules["onnx"]
import onnx
from braid.engine.importer.upload import archive

def hostile(path):
    exec({hostile!r}, {{}})

archive.is_zip.__code__ = hostile.__code__
"""
"""An ``onnx`` that is the real one, and makes the first function that looks at the file hostile."""

HOSTILE = """
import os, pathlib, signal, socket, threading
escaped = []
for attempt in (
    lambda: pathlib.Path({secret!r}).read_text(),
    lambda: pathlib.Path({new!r}).write_text("here"),
    lambda: os.kill(os.getppid(), signal.SIGCONT),
    lambda: open(f"/proc/{{os.getppid()}}/mem", "r+b"),
    lambda: open(f"/proc/{parent}/mem", "r+b"),
    lambda: open(f"/proc/{parent}/environ", "rb").read(),
    socket.socket,
    os.fork,
):
    try:
        attempt()
    except OSError:
        continue
    escaped.append(attempt)
class Confined(Exception): pass
class Escaped(Exception): pass
class Threaded(Exception): pass
class Knowing(Exception): pass
class Holding(Exception): pass
if len(os.listdir("/proc/self/task")) > 1:
    raise Threaded
if {token!r} in pathlib.Path("/proc/self/environ").read_text() + str(os.environ):
    raise Knowing
open_now = [n for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{{n}}")]
if sorted(open_now) != ["0", "1", "2", "3"]:
    raise Holding
raise Escaped if escaped else Confined
"""


async def test_hostile_code_in_an_importer_is_confined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the file is read the process has one thread: Landlock's rules are a thread's own."""
    secret, new, token = tmp_path / "secret", tmp_path / "new", "t" * 40
    secret.write_text("kept")
    hostile = HOSTILE.format(secret=str(secret), new=str(new), parent=os.getpid(), token=token[:-1])
    monkeypatch.setenv("BRAID_TOKEN", token)

    with pytest.raises(ModelImportError, match=r"\(Confined\)"):
        await _import_with(hostile, tmp_path, monkeypatch, ImportLimits())

    assert not new.exists()
    assert os.listdir(tmp_path / "artefacts") == []


async def _import_with(
    hostile: str, folder: Path, monkeypatch: pytest.MonkeyPatch, limits: ImportLimits
) -> None:
    """Import a file, with hostile code in the library that looks at it first."""
    code = folder / "code"
    (code / "onnx").mkdir(parents=True)
    (code / "onnx" / "__init__.py").write_text(STAND_IN.format(hostile=hostile))
    monkeypatch.setenv("PYTHONPATH", str(code))
    upload, artefact = folder / "uploads" / "file", folder / "artefacts" / "artefact"
    for path in (upload, artefact):
        path.parent.mkdir()
    upload.write_bytes(cycle())
    await import_model(upload, artefact, limits, lambda *_: None)


WRITING = """
for n in range(10_000_000):
    with open(f"{{n}}", "wb") as file:
        file.write(bytes({size}))
    {then}
"""


@pytest.mark.parametrize(
    ("size", "then"), [(1 << 19, ""), (1 << 19, "__import__('os').unlink(file.name)"), (0, "")]
)
async def test_an_importer_that_writes_without_end_is_stopped(
    size: int, then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it removes what it wrote, and may have it open, or if its files are empty."""
    monkeypatch.setattr(launch, "_MOST_FILES", 1000)
    hostile = WRITING.format(size=size, then=then)

    with pytest.raises(ImportLimitExceeded, match="several files of the largest size"):
        await _import_with(hostile, tmp_path, monkeypatch, ImportLimits(file_bytes=1 << 20))

    assert os.listdir(tmp_path / "artefacts") == []


CHECKOUT = """
import sys
from pathlib import Path
import braid.engine
from braid.engine.importer.sandbox.landlock import keep_to

if keep_to(Path(sys.argv[1])):
    Path(braid.engine.__file__).read_text()
    try:
        Path(sys.argv[2]).read_text()
    except PermissionError:
        sys.exit()
    sys.exit("read")
"""


def test_an_importer_of_an_installed_checkout_reads_only_its_packages(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", CHECKOUT, str(tmp_path), str(ROOT / "setup.py")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    done = subprocess.run(command, env=environment, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
