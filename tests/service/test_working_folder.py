"""Braid imports nothing from the folder it is started in, whatever the files there are called.

files of this checkout ──pip wheel──> braid_serve, with the client inside
                       ──make dist──> sdists and wheels to publish ──> an empty environment
                       ──copied──> named in PYTHONPATH, installed nowhere
"""

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from braid.core.child_process import python_environment
from braid_client import __version__
from tests import ROOT
from tests.models.small import small_cnn
from tests.service.server_process import CONSOLE_SCRIPT, ServerProcess

HOSTILE = (
    'import pathlib; pathlib.Path(__file__).with_suffix(".imported").touch(); raise SystemExit(7)'
)
LIBRARY = """
import sys
import numpy as np
import braid

with braid.compile(sys.argv[1], planner="sequential", store=sys.argv[2]) as net:
    assert net(np.zeros((2, 3, 16, 16), np.float32)).shape[0] == 2
"""
TESTS_OF_A_COPY = (
    "tests/benchmarks/test_cuda.py::test_without_a_gpu_its_versions_are_one_line",
    "tests/service/oip/test_rest.py::test_triton_client_asks_for_everything_else",
    "tests/service/oip/test_rest.py::test_the_document_names_every_route",
    "tests/service/test_service.py::test_answers_are_those_of_onnxruntime",
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


@pytest.mark.ci
def test_serving_registering_and_planning_import_nothing_of_the_working_folder(
    tmp_path: Path, folder: Path
) -> None:
    serve_register_and_infer(CONSOLE_SCRIPT, tmp_path, folder)


@pytest.mark.ci
def test_the_wheels_of_a_release_work_in_an_empty_environment(
    tmp_path: Path, folder: Path, checkout: Path
) -> None:
    own = f"BIN={Path(sys.executable).parent}"
    run(["make", "--old-file=.venv/.ready", "dist", own], checkout)
    serve, client = (
        next((checkout / "dist").glob(f"{name}-{__version__}-*.whl"))
        for name in ("braid_serve", "braid_client")
    )
    assert f'Requires-Dist: braid-client=={__version__}; extra == "server"' in metadata(serve)
    for wheel, package in ((serve, "braid"), (client, "braid_client")):
        assert "Classifier: Typing :: Typed" in metadata(wheel)
        assert "file:" not in metadata(wheel)
        with zipfile.ZipFile(wheel) as archive:
            assert f"{package}/py.typed" in archive.namelist()

    script = installed(tmp_path / "environment", [serve, client])

    serve_register_and_infer((str(script),), tmp_path, folder)
    python, model, cache = script.with_name("python"), tmp_path / "net.onnx", tmp_path / "cache"
    run([str(python), "-P", "-c", LIBRARY, str(model), str(cache)], folder)
    assert list(folder.rglob("*.imported")) == []


@pytest.mark.ci
def test_a_copy_works_that_is_only_named_in_pythonpath(
    tmp_path: Path, folder: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = str(bare(tmp_path / "environment"))
    monkeypatch.setenv("PYTHONPATH", str(checkout))

    serve_register_and_infer((python, "-P", "-m", "braid.server.cli.main"), tmp_path, folder)

    run([python, "-P", "-c", LIBRARY, str(tmp_path / "net.onnx"), str(tmp_path / "cache")], folder)
    assert list(folder.rglob("*.imported")) == []
    run([python, "-m", "pytest", "-q", *TESTS_OF_A_COPY], checkout)


@pytest.mark.ci
def test_pip_wheel_needs_no_index_for_the_client(tmp_path: Path, checkout: Path) -> None:
    run([sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(tmp_path), "."], checkout)

    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
        console = ROOT / "server/console"
        pages = [*console.glob("assets/*"), *console.glob("templates/*")]
        assert {f"braid/{path.relative_to(ROOT)}" for path in pages} <= {*archive.namelist()}
        assert {"braid_client/py.typed", "braid_client/wire/admin_pb2.pyi"} <= {*archive.namelist()}
    assert tops == {"braid", "braid_client", f"braid_serve-{__version__}.dist-info"}
    assert not re.search(r"braid-client|file:", metadata(wheel)), "it has the client inside"


@pytest.fixture(autouse=True)
def _only_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let children find no packages, and pip no installed ones, by the path that tests have."""
    monkeypatch.delenv("PYTHONPATH", raising=False)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files of this checkout as a fresh clone has them, changes included."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = run(listing, ROOT).split("\0")
    for name in filter(None, names):
        if (ROOT / name).exists():
            (tmp_path / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / "clone" / name, follow_symlinks=False)
    return tmp_path / "clone"


def run(command: Sequence[str], folder: Path) -> str:
    """Run a command in ``folder`` and return what it prints."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if re.fullmatch(r"[^/]+/METADATA", name))
        return archive.read(name).decode()


def bare(environment: Path) -> Path:
    """Make an environment without Braid; return the path of its Python.

    The libraries are those of this environment: torch alone would take minutes. What is installed
    here as editable is not seen there, as only the folders themselves are named.
    """
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    libraries = [path for path in sys.path if Path(path).name == "site-packages"]
    (packages / "libraries.pth").write_text("\n".join(libraries))
    return environment / "bin/python"


def installed(environment: Path, wheels: Sequence[Path]) -> Path:
    """Install wheels into an environment without Braid; return the path of ``braid``."""
    bare(environment)
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin/python")]
    run([*pip, "install", "--no-index", "--no-deps", *map(str, wheels)], environment)
    return environment / "bin/braid"


def serve_register_and_infer(command: Sequence[str], tmp_path: Path, folder: Path) -> None:
    """Do so in ``folder``, and find none of its modules imported."""
    model = small_cnn(tmp_path / "net.onnx")
    server = ServerProcess(tmp_path / "store", command=command, folder=folder)

    def braid(*arguments: str) -> None:
        run([*command, *arguments, "--address", server.address], folder)

    try:
        server.start()
        planner = ("--batch-sizes", "1", "--planner", "ios")
        braid("register", "net", str(model), *planner, "--wait")
        braid("infer", "net")
        assert '"x"' in server.http("/v2/models/net")
        page = server.http("/console/models/net")
        assets = re.findall(r'(?:href|src)="(/console/[\w.-]+\.(?:css|js|svg|png))"', page)
        assert "/console/console.css" in assets
        assert all(map(server.http, assets))
        assert server.bench.is_running()  # a measuring worker started here, too
    finally:
        server.end()

    assert [path.name for path in folder.rglob("*.imported")] == []


def test_a_child_gets_the_callers_paths_and_not_the_working_folder() -> None:
    made = python_environment({"PYTHONPATH": "/libraries::/more", "HOME": "/home"})

    assert made["PYTHONPATH"].split(os.pathsep) == ["/libraries", "/more"]
    assert (made["PYTHONSAFEPATH"], made["HOME"]) == ("1", "/home")


def test_one_module_alone_knows_how_a_python_child_is_started() -> None:
    folders = ("core", "charts", "scheduler", "engine", "server")
    sources = [path for name in folders for path in (ROOT / name).rglob("*.py")]

    knowing = [path.name for path in sources if "sys.executable" in path.read_text()]

    assert knowing == ["child_process.py"]
