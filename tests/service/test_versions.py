"""Versions, labels and swaps, on a server process with clients that never stop asking.

Version n of the model answers x + n: each answer tells which version it came from.
"""

import shutil
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from braid.server.cli.main import main
from braid_client import Client, FailedPrecondition, JobFailed, ModelNotFound, RetryPolicy, Serving
from tests.clock import until
from tests.models.small import adds
from tests.service.load import Load
from tests.service.server_process import ServerProcess

CLIENTS = 16


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    made = ServerProcess(tmp_path_factory.mktemp("versions") / "store").start()
    yield made
    assert made.stop() == 0


def register(server: ServerProcess, folder: Path, name: str, number: int) -> None:
    server.register({name: adds(folder / f"{number}.onnx", number)})


def answer(client: Client, name: str, version: str | int | None = None) -> tuple[int, str]:
    """(what was added, version that the answer names)."""
    result = client.infer(name, {"x": np.zeros((1, 3), np.float32)}, version=version)
    return int(result.outputs["y"][0, 0]), result.version


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request got, and when: seconds of the monotonic clock."""

    sent_at: float
    received_at: float
    number: int  # what was added
    version: str  # that the answer names


class Clients(Load):
    """Threads that ask a model without a pause, and what they heard."""

    def __init__(self, server: ServerProcess, name: str, count: int = CLIENTS) -> None:
        self.answers: list[Answer] = []
        self._client = Client(server.address, retry=RetryPolicy(max_attempts=1))
        super().__init__([partial(self._ask, name)] * count)

    def _ask(self, name: str) -> None:
        sent_at = time.monotonic()
        number, version = answer(self._client, name)
        self.answers.append(Answer(sent_at, time.monotonic(), number, version))

    def await_answers(self, count: int, since: float) -> None:
        """Wait until so many requests were answered that were sent after ``since``."""

        def have_come() -> bool:
            return sum(done.sent_at > since for done in self.answers[-4 * count :]) >= count

        with self._ended:
            assert self._ended.wait_for(have_come, 120)

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__(*exc_info)
        self._client.close()


@pytest.mark.ci
def test_labels_swap_atomically_twenty_times_under_load(
    server: ServerProcess, tmp_path: Path
) -> None:
    for number in (1, 2):
        register(server, tmp_path, "swapped", number)
    swaps: list[tuple[float, float, int]] = []  # (asked for at, answered at, version)
    with server.client() as admin, Clients(server, "swapped") as clients:
        for turn in range(20):
            wanted = 1 + turn % 2
            asked_at = time.monotonic()
            admin.set_serving("swapped", Serving(labels={"stable": wanted}))
            swaps.append((asked_at, time.monotonic(), wanted))
            clients.await_answers(CLIENTS, since=swaps[-1][1])

    assert set(clients.outcomes) == {"OK"}
    assert len(clients.answers) >= 20 * CLIENTS
    assert {done.number for done in clients.answers} == {1, 2}
    assert all(str(done.number) == done.version for done in clients.answers)
    # Whoever asked after a swap was answered, and heard before the next was asked for, got the
    # new version.
    for (_, since, wanted), (before, _, _) in pairwise(swaps):
        between = [
            d.number for d in clients.answers if since < d.sent_at and d.received_at < before
        ]
        assert set(between) == {wanted}


@pytest.mark.parametrize(
    ("times", "clients"),
    [(2, 1), pytest.param(20, CLIENTS, marks=pytest.mark.slow)],  # imports give way to clients
)
def test_new_versions_replace_old_ones_under_load(
    server: ServerProcess, tmp_path: Path, times: int, clients: int
) -> None:
    name = f"replaced-{times}-times"
    register(server, tmp_path, name, 1)
    with server.client() as admin:
        admin.set_serving(name, Serving(latest=1))
        with Clients(server, name, clients) as asking:
            for number in range(2, times + 2):
                register(server, tmp_path, name, number)
                asking.await_answers(1, since=time.monotonic())
        _await_states(admin, name, {times + 1: "SERVING", times: "UNLOADED"})

    assert set(asking.outcomes) == {"OK"}
    assert {done.number for done in asking.answers} == set(range(1, times + 2))
    assert all(str(done.number) == done.version for done in asking.answers)
    heard = sorted(asking.answers, key=lambda done: done.received_at)
    newest = list(accumulate((done.number for done in heard), max, initial=0))
    for later in asking.answers:
        before = bisect_left(heard, later.sent_at, key=lambda done: done.received_at)
        assert later.number >= newest[before]  # never back to a version that was replaced


def _await_states(admin: Client, name: str, wanted: dict[int, str]) -> None:
    def states() -> dict[int, str]:
        return {int(m.version): m.state.name for m in admin.models() if m.name == name}

    until(lambda: states().items() >= wanted.items(), why=lambda: f"{states()}, not {wanted}")


def test_policies_say_which_versions_serve(server: ServerProcess, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        register(server, tmp_path, "several", number)
    with server.client() as admin:
        assert [answer(admin, "several", number)[0] for number in (1, 2, 3)] == [1, 2, 3]

        admin.set_serving("several", Serving(latest=2))
        assert answer(admin, "several")[0] == 3
        with pytest.raises(FailedPrecondition):
            answer(admin, "several", 1)

        admin.set_serving("several", Serving(versions=(1,), labels={"canary": 3}))
        assert answer(admin, "several", "canary")[0] == 3
        assert answer(admin, "several", 1)[0] == 1
        with pytest.raises(FailedPrecondition):
            answer(admin, "several", 2)
        with pytest.raises(ModelNotFound):
            answer(admin, "several", "stable")

        admin.set_serving("several", Serving(labels={"stable": 2, "canary": 3}))
        assert answer(admin, "several")[0] == 2
        assert [answer(admin, "several", number)[0] for number in (1, 2, 3)] == [1, 2, 3]


def test_labels_name_versions_that_can_serve(server: ServerProcess, tmp_path: Path) -> None:
    register(server, tmp_path, "labelled", 1)
    with server.client() as admin:
        with pytest.raises(JobFailed):
            admin.register("labelled", b"\x08\x07", wait=True, timeout_s=600)
        before = admin.set_serving("labelled", Serving(latest=1, labels={"stable": 1}))

        assert answer(admin, "labelled")[0] == 1  # the failed version changed nothing
        with pytest.raises(FailedPrecondition):
            admin.set_serving("labelled", Serving(labels={"stable": 2}))
        with pytest.raises(ModelNotFound):
            admin.set_serving("labelled", Serving(labels={"stable": 7}))
        for wrong in (Serving(labels={"1": 1}), Serving(latest=-1), Serving(share=0.0)):
            with pytest.raises(ValueError):  # noqa: PT011  InvalidArgument is one
                admin.set_serving("labelled", wrong)
        assert admin.serving("labelled") == before
        with pytest.raises(FailedPrecondition):
            admin.delete("labelled", version=1)


def test_deleting_the_newest_brings_the_one_before_back(
    server: ServerProcess, tmp_path: Path
) -> None:
    for number in (1, 2):
        register(server, tmp_path, "undone", number)
    with server.client() as admin:
        admin.set_serving("undone", Serving(latest=1))
        admin.delete("undone", version=2)
        assert answer(admin, "undone") == (1, "1")
        admin.delete("undone")
        register(server, tmp_path, "undone", 3)
        assert admin.serving("undone") == Serving()  # nothing is left of the old one


@pytest.mark.slow
def test_a_load_serves_all_versions_but_those_that_cannot(
    server: ServerProcess, tmp_path: Path
) -> None:
    for number in (1, 2, 3):
        register(server, tmp_path, "some", number)
    lost = sha256((tmp_path / "1.onnx").read_bytes()).hexdigest()
    with server.client() as client, triton.InferenceServerClient(server.address) as oip:
        oip.unload_model("some")
        shutil.rmtree(server.store / "artefacts" / lost)

        with pytest.raises(InferenceServerException, match="register the same file again"):
            oip.load_model("some")

        assert answer(client, "some", 2) == (2, "2")
        assert answer(client, "some") == (3, "3")


@pytest.mark.ci
def test_configurations_outlive_a_restart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ServerProcess(tmp_path / "store").start() as server:
        for number in (1, 2):
            register(server, tmp_path, "kept", number)
        options = ["--label", "stable=1", "--share", "2", "--max-wait-ms", "1"]
        assert main(["serving", "kept", *options, "--address", server.address]) == 0
        assert "stable -> version 1" in capsys.readouterr().out
        assert server.stop() == 0
        server.start()
        with server.client() as client:
            kept = client.serving("kept")
            assert answer(client, "kept") == (1, "1")
            assert kept == Serving(labels={"stable": 1}, share=2.0, max_wait_ms=1.0)
            client.set_serving("kept", replace(kept, labels={}))
            assert answer(client, "kept") == (2, "2")
