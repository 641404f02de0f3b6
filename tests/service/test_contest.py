import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from braid.core.runtimes import OPENVINO
from braid.core.schedule import SEQUENTIAL
from braid.server.cli.main import main
from braid_client import Client, PlanContest
from tests.clock import until
from tests.models.small import small_cnn
from tests.service.contests import PLANS, let_compete
from tests.service.load import Load
from tests.service.oip.rest import call
from tests.service.server_process import ServerProcess
from tests.service.test_residency import matrix

ROW = {"x": np.random.default_rng(1).standard_normal((1, 3, 16, 16)).astype(np.float32)}
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("contest")
    with ServerProcess(folder / "store").start() as server:
        server.register({"cnn": small_cnn(folder / "cnn.onnx")}, planner="")
        begin_again(server)
        yield server


def begin_again(server: ServerProcess, *, is_decided: bool = False) -> None:
    """Restart; three plans compete then, or the first one of them has won."""
    assert server.stop() == 0
    let_compete(server.store, is_decided=is_decided)
    server.start()


def contest_of(client: Client, name: str = "cnn") -> PlanContest:
    (plan,) = client.model(name).schedules
    assert plan.contest is not None
    return plan.contest


def answer(client: Client) -> NDArray[np.float32]:
    (output,) = client.infer("cnn", ROW).outputs.values()
    return cast(NDArray[np.float32], output)


def test_every_plan_that_requests_choose_from_answers_alike_and_pinned_in_equal_bits(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    with server.client() as client:
        expected = answer(client)
        names = [candidate.name for candidate in contest_of(client).candidates]
        assert sorted(names) == sorted(PLANS)
        ids = set()
        for name in names:
            assert main(["schedule", "pin", "cnn", name, "--address", server.address]) == 0
            contest = contest_of(client)
            assert (contest.pinned, contest.candidates[0].name) == (True, name)
            assert str(contest).endswith("pinned")
            answers = [client.infer("cnn", ROW) for _ in range(30)]
            (plan_id,) = {one.plan_id for one in answers}
            assert plan_id == contest.candidates[0].plan_id
            ids.add(plan_id)
            assert len({next(iter(one.outputs.values())).tobytes() for one in answers}) == 1
            error = np.abs(answer(client) - expected).max() / np.abs(expected).max()
            assert error <= 2 * TOLERANCE
        assert len(ids) == len(names)
        assert main(["schedule", "unpin", "cnn", "--address", server.address]) == 0
        assert not contest_of(client).pinned
        capsys.readouterr()
        assert main(["schedule", "show", "cnn", "--address", server.address]) == 0
        out = capsys.readouterr().out
        assert "serves: " in out
        assert all(name in out for name in names)


def test_rest_shows_the_contest_and_pins(server: ServerProcess) -> None:
    with server.client() as client:
        first = contest_of(client).candidates[0].name
    (plan,) = call(server, "/v2/models/cnn/schedules").json
    assert plan["contest"]["candidates"][0]["name"] == first
    pin = "/v2/models/cnn/schedule/pin"
    assert call(server, pin, {"plan": first}).json["pinned"] == first
    assert call(server, pin, {"plan": 3}).status == 400
    assert call(server, pin, {"plan": ""}).status == 200
    assert "<h2>Stages</h2>" in server.http("/console/schedules/cnn/1/1?device=cpu")


def text_of(server: ServerProcess, page: str) -> str:
    return " ".join(re.sub("<[^>]*>", " ", server.http(f"/console/{page}")).split())


def test_a_decision_stays(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    begin_again(server, is_decided=True)
    line = "0.20 ms; ONNX Runtime 0.40 ms; own plan (one operator after another) 0.60 ms; "
    line += "measured at the decision; decided after 53 pairs"
    page, model = text_of(server, "schedules/cnn/1/1"), text_of(server, "models/cnn")
    assert line in page
    assert "400 µs 53 2.000 1.900 to 2.100" in page
    assert "measured at registration (spread) 90 µs" in page
    assert "OpenVINO, decided after 53 pairs, no requests yet" in model
    assert "since then runs in service choose: decided after 53 pairs." in model
    assert main(["schedule", "show", "cnn", "--address", server.address]) == 0
    assert line in " ".join(capsys.readouterr().out.split())
    with server.client() as client:
        answer(client)
        assert client.model("cnn").schedules[0].measured_us == 90.0
        first, *others = contest_of(client).candidates
    assert [one.latency_us / first.latency_us for one in others] == pytest.approx([2.0, 3.0])


def pairs_of(client: Client) -> int:
    return max(each.pairs for each in contest_of(client).candidates)


def have_all_run(client: Client) -> bool:
    for _ in range(20):
        answer(client)
    return all(candidate.runs for candidate in contest_of(client).candidates)


@contextmanager
def asking(server: ServerProcess) -> Iterator[None]:
    """Ask without a pause meanwhile; each request has to be answered, and rightly."""
    with server.client() as client:
        expected = answer(client)

        def ask() -> None:
            error = np.abs(answer(client) - expected).max()
            assert error <= 2 * TOLERANCE * np.abs(expected).max()

        with Load([ask]) as load:
            load.until("OK")
            yield
    assert set(load.outcomes) == {"OK"}


def kill_worker(server: ServerProcess) -> None:
    starts = server.starts_of_worker
    os.kill(server.worker_pid, signal.SIGKILL)
    until(lambda: server.starts_of_worker > starts)


@pytest.mark.ci
def test_a_worker_killed_in_the_block_of_a_challenger_loses_no_request_and_the_contest_goes_on(
    server: ServerProcess,
) -> None:
    begin_again(server)
    with server.client() as client:
        first = contest_of(client).candidates[0].plan_id
        with asking(server):
            until(lambda: client.infer("cnn", ROW).plan_id != first)  # one of three, at least
            kill_worker(server)
            assert all(answer(client).size for _ in range(300))
        contest = contest_of(client)
        assert sum(candidate.runs for candidate in contest.candidates) >= 290
        assert server.metric("braid_plan_runs_total", model="cnn", plan=contest.candidates[0].name)
        pairs = pairs_of(client)

        assert until(lambda: answer(client).size and pairs_of(client) > pairs)
        assert {each.name for each in contest_of(client).candidates} == {*PLANS}
        assert not contest_of(client).decided


@pytest.fixture
def comparing(server: ServerProcess) -> Iterator[ServerProcess]:
    """A server on the same store that runs pairs in idle time."""
    begin_again(server)
    assert server.stop() == 0
    with ServerProcess(server.store, BRAID_COMPARE_AGAIN="true").start() as other:
        yield other
    server.start()


@pytest.mark.ci
def test_a_model_on_demand_leaves_memory_with_its_contest_and_comes_back_with_it(
    comparing: ServerProcess,
) -> None:
    with comparing.client() as client:
        usual = client.serving("cnn")
        client.set_serving("cnn", replace(usual, residency="on-demand", idle_s=0.5))
        for _ in range(2):  # idle time has pairs for it, which do not keep it
            assert until(lambda: not comparing.metric("braid_model_loaded", model="cnn"))
            assert not contest_of(client).decided
            assert until(lambda: have_all_run(client))
        client.set_serving("cnn", usual)


@pytest.mark.ci
def test_a_short_memory_takes_a_challenger_and_leaves_one_plan(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store", BRAID_WORKER_MEMORY_BYTES="1GiB").start() as server:
        factors = {"one": 1, "two": 2}
        server.register(  # 66 MiB; 128 for both
            {name: matrix(tmp_path / f"{name}.onnx", by, 4160) for name, by in factors.items()}
        )
        assert server.stop() == 0
        let_compete(server.store, SEQUENTIAL, OPENVINO)
        server.start()
        with server.client() as client:

            def decided() -> list[str]:
                return [name for name in factors if contest_of(client, name).decided]

            assert until(decided)
            assert len(decided()) == 1
            assert contest_of(client, decided()[0]).candidates[0].name == SEQUENTIAL
            row = {"x": np.ones((1, 4160), np.float32)}
            for name, factor in factors.items():
                assert client.infer(name, row).outputs["y"][0, 0] == factor
        assert server.starts_of_worker == 1, "it died of nothing"


def test_a_restart_begins_with_the_stored_candidates_and_the_pin(server: ServerProcess) -> None:
    begin_again(server)
    with server.client() as client:
        names = [candidate.name for candidate in contest_of(client).candidates]
        client.pin_plan("cnn", names[-1])
    assert server.stop() == 0
    server.start()

    with server.client() as client:
        contest = contest_of(client)
        assert (contest.pinned, contest.candidates[0].name) == (True, names[-1])
        assert {candidate.name for candidate in contest.candidates} == {*names}
        client.pin_plan("cnn", "")
        assert until(lambda: have_all_run(client))


def test_a_model_is_registered_with_its_plan_pinned(server: ServerProcess, tmp_path: Path) -> None:
    with server.client() as client:
        path = small_cnn(tmp_path / "cnn.onnx")
        client.register("pinned", path, batch_sizes=[1], pin="sequential", wait=True)
        (plan,) = client.model("pinned").schedules
        assert plan.contest is not None
        tried = {candidate.name for candidate in plan.contest.candidates}
        assert plan.contest.pinned == ("sequential" in tried)
