"""A folder in Triton's layout, served by a server process that follows it.

A file that adds n to its input answers with n: each answer tells which file it came from.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import tritonclient.grpc as triton

from braid.server.cli.main import main
from braid_client import BraidError
from tests.clock import until
from tests.models.small import adds
from tests.service.server_process import ServerProcess
from tests.service.test_versions import Clients, answer

SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository, and the server that serves it."""

    root: Path
    server: ServerProcess
    drafts: Path  # files that are imported already, so that they serve at once

    def put(self, place: str, number: int) -> None:
        """Put a model that adds ``number`` at NAME/VERSION."""
        draft = self.drafts / f"{number}.onnx"
        folder = self.root / place
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(draft, folder / "model.onnx.tmp")
        (folder / "model.onnx.tmp").rename(folder / "model.onnx")

    def configure(self, name: str, text: str) -> None:
        (self.root / name).mkdir(exist_ok=True)
        (self.root / name / "config.pbtxt").write_text(text)

    def index(self) -> dict[str, tuple[str, str]]:
        """NAME/VERSION -> state, reason."""
        with triton.InferenceServerClient(self.server.address) as client:
            return {
                f"{each.name}/{each.version}": (each.state, each.reason)
                for each in client.get_model_repository_index().models
            }

    def answers(self, name: str, version: int | None = None) -> tuple[int, str] | None:
        with self.server.client() as client:
            try:
                return answer(client, name, version)
            except BraidError:
                return None

    def await_answer(self, name: str, number: int, version: int) -> None:
        """Wait until a model answers by default with this file as this version."""
        wanted = number, str(version)
        until(lambda: self.answers(name) == wanted, SECONDS, lambda: self.server.log)

    def await_reason(self, place: str, words: str) -> str:
        """Wait until the index says so of NAME/VERSION; the state that stands there, too."""

        def look() -> str:
            state, reason = self.index().get(place, ("", ""))
            return state if words in reason else ""

        return until(look, SECONDS, lambda: f"{self.index()}\n{self.server.log}")


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    root, drafts = tmp_path / "models", tmp_path / "drafts"
    root.mkdir()
    drafts.mkdir()
    arguments = ("--model-repository", str(root))
    server = ServerProcess(tmp_path / "store", arguments=arguments, BRAID_SPARE_WORKER="false")
    server.start()
    try:
        server.import_ahead(*(adds(drafts / f"{number}.onnx", number) for number in range(1, 8)))
        yield Repository(root, server, drafts)
    finally:
        server.end()


def test_five_models_serve_follow_their_files_and_survive_a_restart(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.configure("all", "version_policy: {all: {}}  max_batch_size: 4")
    repository.configure(
        "two",
        """
        name: "two"
        platform: "onnxruntime_onnx"
        max_batch_size: 4
        input [{name: "x" data_type: TYPE_FP32 dims: [3]}]
        output [{name: "y" data_type: TYPE_FP32 dims: [3]}]
        dynamic_batching {preferred_batch_size: [2] max_queue_delay_microseconds: 700}
        instance_group [{count: 1 kind: KIND_CPU}]
        version_policy: {specific: {versions: [1, 2]}}
        """,
    )
    for place, number in {"all/1": 1, "all/2": 2, "two/1": 1, "two/2": 2, "two/3": 3}.items():
        repository.put(place, number)
    for place, number in {"plain/1": 3, "newest/1": 4, "newest/5": 5, "last/1": 6}.items():
        repository.put(place, number)
    served = {"all/1", "all/2", "two/1", "two/2", "plain/1", "newest/5", "last/1"}

    def ready() -> set[str]:
        return {place for place, (state, _) in repository.index().items() if state == "READY"}

    until(lambda: ready() == served, SECONDS, lambda: f"{ready()}\n{repository.server.log}")
    assert repository.answers("all", 1) == (1, "1")
    assert repository.answers("newest") == (5, "5")
    with repository.server.client() as client:
        serving = client.serving("two")
        assert (serving.versions, serving.max_wait_ms) == ((1, 2), 0.7)
        jobs = {job.id for job in client.jobs()}

    # A changed file takes its version's place while sixteen clients ask without a pause.
    with Clients(repository.server, "plain") as clients:
        clients.await_answers(16, since=0.0)
        repository.put("plain/1", 7)
        repository.await_answer("plain", 7, 1)
    assert clients.load.errors == []
    assert [done.number for done in clients.load.answers if done.number not in (3, 7)] == []

    # A broken one does not.
    (repository.root / "plain/1/model.onnx").write_bytes(b"\x08\x07 no model")
    assert repository.await_reason("plain/1", "plain/1: ") == "READY"
    assert repository.answers("plain") == (7, "1")
    assert main(["models", "--address", repository.server.address]) == 0
    assert "the version serves what it had before" in capsys.readouterr().out

    # A restart finds what is registered, the broken file too.
    with repository.server.client() as client:
        jobs = {job.id for job in client.jobs() if job.state != "FAILED"}
    assert repository.server.stop() == 0
    repository.server.start()
    assert ready() == served
    assert repository.server.http("/readyz").strip() == "ready"
    assert repository.await_reason("plain/1", "plain/1: ") == "READY"
    with repository.server.client() as client:
        assert {job.id for job in client.jobs() if job.state != "FAILED"} == jobs
