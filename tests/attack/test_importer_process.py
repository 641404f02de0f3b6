"""The confinement of the very process that the server starts, with hostile code in a library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from braid.core.errors import ModelImportError
from braid.engine.importer.host.launch import import_model
from braid.engine.importer.host.process import SpareImporter
from braid.engine.importer.host.request import ImportLimits
from tests import ROOT
from tests.models.bad_onnx import cycle

HOSTILE = """
import os, pathlib, signal, socket, threading
escaped = []
for attempt in (
    lambda: pathlib.Path({secret!r}).read_text(),
    lambda: pathlib.Path({new!r}).write_text("here"),
    lambda: os.kill(os.getppid(), signal.SIGCONT),
    lambda: open(f"/proc/{{os.getppid()}}/mem", "r+b"),
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
if len(os.listdir("/proc/self/task")) > 1:
    raise Threaded
raise Escaped if escaped else Confined
"""


@pytest.mark.parametrize("is_spare", [False, pytest.param(True, marks=pytest.mark.ci)])
async def test_hostile_code_in_an_importer_is_confined(
    is_spare: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the file is read the process has one thread: Landlock's rules are a thread's own."""
    secret, new, code = tmp_path / "secret", tmp_path / "new", tmp_path / "code"
    secret.write_text("kept")
    (code / "onnx").mkdir(parents=True)
    (code / "onnx" / "__init__.py").write_text(HOSTILE.format(secret=str(secret), new=str(new)))
    monkeypatch.setenv("PYTHONPATH", str(code))
    upload, artefact = tmp_path / "uploads" / "file", tmp_path / "artefacts" / "artefact"
    for path in (upload, artefact):
        path.parent.mkdir()
    upload.write_bytes(cycle())
    spare = SpareImporter()
    if is_spare:
        spare.prepare()

    with pytest.raises(ModelImportError, match=r"\(Confined\)"):
        await import_model(upload, artefact, ImportLimits(), lambda *_: None, spare=spare)

    assert not new.exists()
    assert os.listdir(artefact.parent) == []


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
