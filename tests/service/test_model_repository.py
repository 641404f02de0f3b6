"""A folder in Triton's layout, served by a server process that follows it.

A file that adds n to its input answers with n: each answer tells which file it came from.
"""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError

import onnx
import pytest
import tritonclient.grpc as triton

from braid.server.cli.main import main
from braid_client import BraidError
from braid_client.records import ENDED
from tests.clock import until
from tests.models.small import adds
from tests.service.server_process import ServerProcess
from tests.service.test_versions import Clients, answer

SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Repository:
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


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    folder = tmp_path_factory.mktemp("repository")
    root, drafts = folder / "models", folder / "drafts"
    root.mkdir()
    drafts.mkdir()
    arguments = ("--model-repository", str(root))
    with ServerProcess(folder / "store", arguments=arguments).start() as server:
        server.import_ahead(*(adds(drafts / f"{number}.onnx", number) for number in range(1, 8)))
        yield Repository(root, server, drafts)


@pytest.mark.ci
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
    assert set(clients.outcomes) == {"OK"}
    assert {done.number for done in clients.answers} <= {3, 7}

    # A broken one does not.
    (repository.root / "plain/1/model.onnx").write_bytes(b"\x08\x07 no model")
    assert repository.await_reason("plain/1", "plain/1: ") == "READY"
    assert repository.answers("plain") == (7, "1")
    assert main(["models", "--address", repository.server.address]) == 0
    assert "the version serves what it had before" in capsys.readouterr().out

    # A restart registers nothing anew, and waits for no model whose file is broken.
    with repository.server.client() as client:
        until(lambda: all(job.state in ENDED for job in client.jobs()), SECONDS)
        jobs = {job.id for job in client.jobs() if job.state != "FAILED"}
    assert repository.server.stop() == 0
    shutil.copytree(repository.root / "plain", repository.root / "late")
    repository.server.start()
    assert ready() == served
    assert repository.server.http("/readyz").strip() == "ready"
    assert repository.await_reason("plain/1", "plain/1: ") == "READY"
    assert repository.await_reason("late/1", "late/1: ") == "UNAVAILABLE"
    with repository.server.client() as client:
        assert {job.id for job in client.jobs() if job.state != "FAILED"} == jobs
    shutil.rmtree(repository.root / "late")
    until(lambda: "late/1" not in repository.index(), SECONDS, repository.index)
    assert repository.server.http("/readyz").strip() == "ready"


@pytest.mark.ci
def test_a_broken_model_keeps_a_server_from_ready_only_where_that_is_asked(tmp_path: Path) -> None:
    root, store = tmp_path / "models", tmp_path / "store"
    for name in ("good", "broken"):
        (root / name / "1").mkdir(parents=True)
    adds(root / "good/1/model.onnx", 1)
    (root / "good/config.pbtxt").write_text(
        "instance_group { count: 2 kind: KIND_GPU } optimization { priority: PRIORITY_MAX }"
    )
    (root / "broken/1/model.onnx").write_bytes(b"\x08\x07 no model")
    arguments = ("--model-repository", str(root))
    with ServerProcess(store, arguments=arguments).start() as server:
        assert server.http("/readyz").strip() == "ready"
        state, reason = Repository(root, server, root).index()["good/1"]
        assert state == "READY"
        assert "passed over, as it changes no answer: optimization, instance_group" in reason
        assert re.search(r"passed over .*model=good .*instance_group", server.log)
        assert server.stop() == 0
        for asked in ("*", "good,broken"):
            server = ServerProcess(store, arguments=arguments, BRAID_READY_MODELS=asked).start()
            with pytest.raises(HTTPError, match="503") as refused:
                server.http("/readyz")
            with refused.value as answer:
                assert answer.read() == b"not ready: models that do not answer: broken\n"
            assert server.stop() == 0


def test_a_file_that_is_still_copied_serves_when_it_is_whole(repository: Repository) -> None:
    whole = (repository.drafts / "1.onnx").read_bytes()
    file = repository.root / "copied/1/model.onnx"
    file.parent.mkdir(parents=True)
    with file.open("wb") as target:
        target.write(whole[: len(whole) // 2])
        target.flush()
        repository.await_reason("copied/1", "copied/1: ")  # it stood still for too long
        assert repository.server.http("/readyz").strip() == "ready", "what has never served"
        target.write(whole[len(whole) // 2 :])
    repository.await_answer("copied", 1, version=1)
    until(lambda: repository.index()["copied/1"] == ("READY", ""), SECONDS)


@pytest.mark.ci
def test_folders_that_go_take_with_them_what_they_brought(repository: Repository) -> None:
    server = repository.server
    with server.client() as client:
        client.register(
            "mine", repository.drafts / "1.onnx", batch_sizes=[1], planner="sequential", wait=True
        )
        client.register(
            "shared", repository.drafts / "1.onnx", batch_sizes=[1], planner="sequential", wait=True
        )
    repository.put("mine/1", 2)
    repository.put("shared/7", 7)
    repository.await_answer("shared", 7, version=7)
    reason = "registered by a call with other bytes"
    assert repository.await_reason("mine/1", reason) == "READY"
    repository.put("stays/1", 1)  # without any model the repository would look like a lost volume
    repository.await_answer("stays", 1, version=1)
    repository.configure("gone", "version_policy {latest {num_versions: 1}}")
    repository.put("gone/1", 1)
    repository.put("gone/2", 2)
    repository.await_answer("gone", 2, version=2)

    with Clients(server, "gone") as clients:  # what is wanted instead answers before it goes
        clients.await_answers(16, since=0.0)
        shutil.rmtree(repository.root / "gone/2")
        repository.await_answer("gone", 1, version=1)
    assert set(clients.outcomes) == {"OK"}
    for name in ("gone", "mine", "shared"):
        shutil.rmtree(repository.root / name)

    until(lambda: not {"gone/1", "shared/7"} & set(repository.index()), SECONDS)
    assert repository.answers("mine") == repository.answers("shared") == (1, "1")
    assert repository.server.http("/readyz").strip() == "ready"
    until(lambda: repository.index()["mine/1"] == ("READY", ""), SECONDS)


@pytest.mark.ci
def test_what_is_not_offered_is_named_and_what_serves_goes_on(repository: Repository) -> None:
    repository.put("net/1", 1)
    repository.await_answer("net", 1, version=1)
    config = {
        "sequence_batching {}": "sequence_batching: not offered",
        "max_batch_sizes: 2": 'no field named "max_batch_sizes"',
        'input {name: "x" data_type: TYPE_FP16 dims: [-1, 3]}': "TYPE_FP32 in the model",
        'output {name: "z"}': "'z' is none of the model's, which are: y",
        'default_model_filename: "net.onnx"': "there is no net.onnx in there",
    }
    for text, words in config.items():
        repository.configure("net", text)
        assert repository.await_reason("net/1", words) == "READY"
        assert repository.answers("net") == (1, "1")
    for name in ("not a name", "empty"):
        (repository.root / name).mkdir()
    repository.configure("never", "sequence_batching {}")
    repository.await_reason("never/", "sequence_batching: not offered")
    repository.await_reason("empty/", "there is no folder of a version")
    assert re.search(r"not used .*model name 'not a name'", repository.server.log)
    (repository.root / "net/config.pbtxt").unlink()
    until(lambda: repository.index()["net/1"] == ("READY", ""), SECONDS, repository.index)


def test_what_is_unloaded_by_request_stays_so_until_its_files_change(
    repository: Repository,
) -> None:
    repository.put("asleep/1", 1)
    repository.await_answer("asleep", 1, version=1)
    with triton.InferenceServerClient(repository.server.address) as client:
        client.unload_model("asleep")
        assert repository.index()["asleep/1"] == ("UNAVAILABLE", "unloaded")
        assert repository.server.http("/readyz").strip() == "ready"
        client.load_model("asleep")
        assert repository.answers("asleep") == (1, "1")
        client.unload_model("asleep")
    repository.put("asleep/1", 2)
    repository.await_answer("asleep", 2, version=1)


@pytest.mark.ci
def test_external_data_beside_a_model_is_part_of_it(repository: Repository) -> None:
    model = onnx.load(repository.drafts / "5.onnx")
    folder = repository.root.with_name("outside") / "1"
    folder.mkdir(parents=True)
    onnx.save_model(
        model,
        folder / "model.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    (folder / "labels.txt").write_text("not of the model")
    (repository.root / "linked").symlink_to(folder.parent)
    repository.await_answer("linked", 5, version=1)
