"""Whatever lies where a file should: who reads it says so, and what else there is goes on."""

import asyncio
import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from braid.core.errors import BraidError
from braid.engine.importer.artefact import load_artefact
from braid.engine.importer.host.report import (
    GRAPH_FILE,
    MODEL_FILE,
    REPORT_FILE,
    WEIGHTS_FILE,
    check_files,
    read_graph,
    read_report,
)
from braid.engine.importer.host.samples import read_samples
from braid.engine.importer.upload.uploaded_model import open_upload
from braid.server.fleet.files.credentials import read_credentials
from braid.server.models.preload import check_models
from braid.server.models.residency import ORDER_FILE, Residency
from braid.server.repository.folders import look_at
from braid.server.repository.model_sync import read_configuration
from braid.server.repository.placing import AT_ONCE, model_file
from braid.server.security.certificates import Certificates, TlsFiles
from braid.server.security.tokens import Role, Tokens, TokenSource, hashed
from braid.server.store.database.opening import database_url
from braid_client import FailedPrecondition
from tests.attack.strange_files import NO_FILES, STRANGE, WRONG_FILES, put
from tests.clock import until
from tests.models.small import adds
from tests.service.server_process import ServerProcess
from tests.service.test_versions import answer

SECONDS = 120.0


def ended(call: Callable[[], object]) -> BaseException | None:
    """Error that a call ended with, in a thread that a call without end would keep."""
    found: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            found.append(error)
        else:
            found.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert found, "it does not end"
    return found[0]


def in_repository(path: Path, name: str) -> Path:
    """Move what lies at a path to a file of a version in a model repository; returns its root."""
    folder = path.parent / "repository" / "model"
    (folder / "1").mkdir(parents=True)
    if os.path.lexists(path):
        path.rename(folder / name)
    return folder.parent


def configuration(path: Path) -> None:
    root = in_repository(path, "config.pbtxt")
    folder = look_at(root).models["model"]
    if not folder.config:
        raise FileNotFoundError(path)
    read_configuration(folder, ["cpu"])


def file_of_version(path: Path) -> None:
    root = in_repository(path, "1/model.onnx")
    file = model_file(look_at(root).models["model"].versions[1], "model.onnx")
    if file.size_bytes() < 1 << 30:  # a larger one is refused
        file.digest()


def certificate(path: Path) -> None:
    key = path.parent / "key"
    trustme.CA().issue_cert("localhost").private_key_pem.write_to_path(key)
    Certificates(TlsFiles(path, key))


READERS: Mapping[str, Callable[[Path], object]] = {
    "tokens": lambda path: Tokens([TokenSource(Role.ADMIN, path)]),
    "a certificate": certificate,
    "the password of a database": lambda path: database_url("postgresql://h/d", path),
    "credentials of shared files": read_credentials,
    "config.pbtxt": configuration,
    "a file of a repository": file_of_version,
    "a model to preload": lambda path: check_models([f"m={path}"], []),
    "samples": read_samples,
    "an upload": lambda path: open_upload(path, path.parent),
    "a report": lambda path: read_report(path.parent),
}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_refused_by_who_should_read_it(
    tmp_path: Path, reader: str, kind: str
) -> None:
    path = tmp_path / REPORT_FILE
    make, _ = NO_FILES[kind]
    make(path)

    error = ended(lambda: READERS[reader](path))

    assert isinstance(error, BraidError | OSError), error


@pytest.mark.parametrize("kind", WRONG_FILES)
@pytest.mark.parametrize("reader", READERS)
def test_a_file_of_the_wrong_content_ends_its_reader(
    tmp_path: Path, reader: str, kind: str
) -> None:
    if (reader, kind) == ("an upload", "a terabyte"):
        pytest.skip("an importer has limits of its own")
    path = tmp_path / REPORT_FILE
    WRONG_FILES[kind](path)

    error = ended(lambda: READERS[reader](path))

    assert error is None or isinstance(error, BraidError | OSError), error


def test_tokens_whose_file_becomes_a_pipe_are_withdrawn(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(hashed("x" * 20))
    tokens = Tokens([TokenSource(Role.ADMIN, file)])
    assert tokens.role_of("x" * 20) is Role.ADMIN

    put(os.mkfifo, file)
    roles: list[Role | None] = []

    assert ended(lambda: roles.append(tokens.role_of("x" * 20))) is None
    assert roles == [None]


def test_certificates_whose_file_becomes_a_pipe_go_on(tmp_path: Path) -> None:
    issued = trustme.CA().issue_cert("localhost")
    files = TlsFiles(tmp_path / "certificate", tmp_path / "key")
    issued.cert_chain_pems[0].write_to_path(files.certificate)
    issued.private_key_pem.write_to_path(files.key)
    certificates = Certificates(files)
    before = certificates.newest()

    put(os.mkfifo, files.certificate)
    found: list[Any] = []

    assert ended(lambda: found.append(certificates.newest())) is None
    assert found == [before]


# A store whose artefacts are strange.

ARTEFACT_FILES = (GRAPH_FILE, WEIGHTS_FILE, MODEL_FILE, REPORT_FILE)


@dataclass(frozen=True, slots=True)
class Served:
    """A server that was stopped, with models that served."""

    server: ServerProcess
    files: Mapping[str, Path]  # by model

    def artefact(self, model: str) -> Path:
        digest = sha256(self.files[model].read_bytes()).hexdigest()
        return self.server.store / "artefacts" / digest


def models_served(folder: Path, count: int) -> Served:
    """Serve models that add their number, and stop."""
    files = {f"adds-{n}": adds(folder / f"{n}.onnx", n) for n in range(count)}
    server = ServerProcess(folder / "store").start()
    try:
        server.register(files)
    finally:
        code = server.stop()
    assert code == 0
    return Served(server, files)


CASES = [
    (name, kind)
    for name in ARTEFACT_FILES
    for kind in ("a pipe", "a device without end", "a folder", "a terabyte", "nothing")
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    made = models_served(folder, len(CASES) + 2)
    yield made
    made.server.end()


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("name", ARTEFACT_FILES)
@pytest.mark.ci
def test_a_strange_file_of_an_artefact_is_damage(
    served: Served, tmp_path: Path, name: str, kind: str
) -> None:
    copy = Path(shutil.copytree(served.artefact("adds-0"), tmp_path / "artefact"))
    assert (copy / name).is_file()
    put(STRANGE[kind], copy / name)

    def read() -> None:
        check_files(copy, served.artefact("adds-0").name)
        read_graph(copy, read_report(copy))
        load_artefact(copy)

    assert isinstance(ended(read), BraidError)


@pytest.mark.ci
def test_a_server_with_strange_artefacts_becomes_ready_and_stops(served: Served) -> None:
    server = served.server
    for number, (name, kind) in enumerate(CASES):
        put(STRANGE[kind], served.artefact(f"adds-{number}") / name)
    sound = len(CASES)
    swapped = served.artefact(f"adds-{sound + 1}")
    put(lambda path: path.symlink_to(served.artefact(f"adds-{sound}")), swapped)

    server.start()
    with server.client() as client:
        assert answer(client, f"adds-{sound}", 1) == (sound, "1")
        for number in range(sound):
            assert "is damaged" in client.model(f"adds-{number}").message, CASES[number]
        for model in ("adds-0", f"adds-{sound + 1}"):
            with pytest.raises(FailedPrecondition, match="register the same file again"):
                answer(client, model, 1)

    assert server.stop() == 0


# A model repository whose files are strange.


@pytest.mark.ci
def test_a_repository_of_strange_files_stops_nothing_else(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    places = [
        (f"{what}-{number}", kind)
        for what in ("config", "model", "data")
        for number, kind in enumerate(STRANGE)
    ]
    for model, kind in places:
        folder = root / model / "1"
        folder.mkdir(parents=True)
        shutil.copy(adds(tmp_path / "seven.onnx", 7), folder / "model.onnx")
        name = {"config": "config.pbtxt", "model": "1/model.onnx", "data": "1/data.bin"}
        put(STRANGE[kind], root / model / name[model.partition("-")[0]])
    good = root / "good" / "1"
    good.mkdir(parents=True)
    shutil.copy(adds(tmp_path / "seven.onnx", 7), good / "model.onnx")
    refused = {
        model
        for model, kind in places
        if kind in NO_FILES and kind != "nothing" and not model.startswith("data")
    }
    with ServerProcess(
        tmp_path / "store", arguments=("--model-repository", str(root))
    ).start() as server:
        said = r"files of the repository do not serve +model=(\S+) "
        until(lambda: refused <= set(re.findall(said, server.log)), SECONDS, lambda: server.log)
        for path in ("/healthz", "/metrics", "/console/"):
            assert server.http(path), path
        with server.client() as client:
            until(lambda: "good" in {model.name for model in client.models()}, SECONDS)
            assert answer(client, "good", 1) == (7, "1")
        assert server.stop() == 0


@pytest.mark.parametrize("kind", [*STRANGE, "brackets", "digits"])
def test_a_strange_order_of_use_is_none_and_is_written_anew(kind: str, tmp_path: Path) -> None:
    makers = {
        "brackets": lambda path: path.write_text("[" * 200_000),
        "digits": lambda path: path.write_text("9" * 5000),
    }
    for name in (ORDER_FILE, Path(ORDER_FILE).with_suffix(".new").name):
        put(STRANGE.get(kind) or makers[kind], tmp_path / name)
    rows: list[Any] = [(SimpleNamespace(name="net", version=1, artefact="a"), None)]
    models: Any = SimpleNamespace(versions=lambda: rows, present_versions=list)
    devices: Any = SimpleNamespace(all=())
    made: list[Residency] = []

    assert ended(lambda: made.append(Residency(1.0, models, devices, tmp_path))) is None

    (residency,) = made
    assert residency.place_in_order(rows[0][0]) == 0
    models.present_versions = lambda: [
        SimpleNamespace(used_at=0.0, any=SimpleNamespace(model=rows[0][0]))
    ]
    assert ended(lambda: asyncio.run(residency.keep_order())) is None
    if kind != "a folder":
        assert json.loads((tmp_path / ORDER_FILE).read_text()) == ["net/1"]


PAUSE = "34" if platform.machine() == "x86_64" else "73"  # ppoll, which is pause elsewhere


def pausing(server: ServerProcess) -> int:
    """Number of the server's threads that wait for good."""
    found = 0
    for thread in Path(f"/proc/{server.process.pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            found += (thread / "syscall").read_text().split()[0] == PAUSE
    return found


@pytest.mark.ci
def test_a_repository_whose_disk_hangs_stops_nothing_else(tmp_path: Path) -> None:
    library = tmp_path / "hanging.so"
    source = Path(__file__).with_name("hanging.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    root, file = tmp_path / "repository", adds(tmp_path / "seven.onnx", 7)
    root.mkdir()
    with ServerProcess(
        tmp_path / "store",
        arguments=("--model-repository", str(root)),
        LD_PRELOAD=str(library),
        HANGING="/repository/stuck-",
    ) as server:
        with server.start().client() as client:
            client.register("good", file, batch_sizes=[1], planner="sequential", wait=True)
            for number in range(12):
                folder = root / f"stuck-{number}" / "1"
                folder.mkdir(parents=True)
                shutil.copy(file, folder / "model.onnx")
            until(lambda: pausing(server) >= AT_ONCE, SECONDS)

            for path in ("/healthz", "/metrics", "/console/"):
                assert server.http(path), path
            assert answer(client, "good", 1) == (7, "1")
            client.register("more", file, batch_sizes=[1], planner="sequential", wait=True)
        assert server.stop() == 0
