"""Braid imports nothing from the folder it is started in, whatever the files there are called."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from braid.core.python_process import python_environment
from tests.models.small import small_cnn
from tests.service.server_process import CONSOLE_SCRIPT, ServerProcess

HOSTILE = (
    'import pathlib; pathlib.Path(__file__).with_suffix(".imported").touch(); raise SystemExit(7)'
)
PACKAGES = ("braid", "core", "engine", "server", "scheduler", "charts", "protos", "braid_client")
MODULES = ("numpy", "torch", "onnx", "onnxruntime", "google", "json", "random")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder whose packages and modules have the names of those that Braid imports."""
    folder = tmp_path / "project"
    for package in PACKAGES:
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text(HOSTILE)
    for module in MODULES:
        (folder / f"{module}.py").write_text(HOSTILE)
    return folder


def test_serving_registering_and_planning_import_nothing_of_the_working_folder(
    tmp_path: Path, folder: Path
) -> None:
    model = small_cnn(tmp_path / "net.onnx")
    server = ServerProcess(tmp_path / "store", command=CONSOLE_SCRIPT, folder=folder)

    def braid(*arguments: str) -> None:
        command = [*CONSOLE_SCRIPT, *arguments, "--address", server.address]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)

    try:
        server.start()
        planner = ("--batch-sizes", "1", "--planner", "ios")
        braid("register", "net", str(model), *planner, "--wait")
        braid("infer", "net", "--input", "x=random")
        assert server.bench.is_running()  # a measuring worker started here, too
    finally:
        server.end()

    assert [path.name for path in folder.rglob("*.imported")] == []


def test_a_child_gets_the_callers_paths_and_not_the_working_folder() -> None:
    made = python_environment({"PYTHONPATH": "/libraries::/more", "HOME": "/home"})

    entries = made["PYTHONPATH"].split(os.pathsep)
    assert entries[-2:] == ["/libraries", "/more"]
    assert "" not in entries
    assert (made["PYTHONSAFEPATH"], made["HOME"]) == ("1", "/home")
