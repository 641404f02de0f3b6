"""Plans that requests choose from on a real server, and plans that are pinned."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from braid.server.cli.main import main
from braid_client import Client, InvalidArgument, ModelNotFound, PlanContest
from tests.clock import until
from tests.models.small import small_cnn
from tests.service.oip.rest import call
from tests.service.server_process import ServerProcess

ROW = {"x": np.random.default_rng(1).standard_normal((1, 3, 16, 16)).astype(np.float32)}
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("contest")
    server = ServerProcess(folder / "store").start()
    path = small_cnn(folder / "cnn.onnx")
    server.import_ahead(path)
    try:
        with server.client() as client:
            client.register("cnn", path, batch_sizes=[1], wait=True)
        yield server
    finally:
        server.end()


def contest_of(client: Client) -> PlanContest:
    (plan,) = client.model("cnn").schedules
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
        assert 1 <= len(names) <= 3
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


def test_a_plan_that_there_is_not_is_refused_with_those_that_there_are(
    server: ServerProcess,
) -> None:
    with server.client() as client:
        with pytest.raises(InvalidArgument, match="cnn has no plan 'fast'; plans: "):
            client.pin_plan("cnn", "fast")
        with pytest.raises(ModelNotFound):
            client.pin_plan("nobody", "ios")


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


def test_a_killed_worker_loses_no_request_and_the_contest_goes_on(server: ServerProcess) -> None:
    with server.client() as client:
        before = server.worker_pid
        expected = answer(client)
        for round_ in range(300):
            got = answer(client)
            assert np.abs(got - expected).max() <= 2 * TOLERANCE * np.abs(expected).max()
            if round_ in (3, 150):
                os.kill(server.worker_pid, signal.SIGKILL)
        assert server.worker_pid != before
        contest = contest_of(client)
        assert sum(candidate.runs for candidate in contest.candidates) >= 290
        assert server.metric("braid_plan_runs_total", model="cnn", plan=contest.candidates[0].name)


def test_a_restart_begins_with_the_stored_candidates_and_the_pin(
    server: ServerProcess, tmp_path: Path
) -> None:
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

        def are_all_tried() -> bool:
            answer(client)
            return all(candidate.runs for candidate in contest_of(client).candidates)

        assert until(are_all_tried)


def test_a_model_is_registered_with_its_plan_pinned(server: ServerProcess, tmp_path: Path) -> None:
    with server.client() as client:
        path = small_cnn(tmp_path / "cnn.onnx")
        client.register("pinned", path, batch_sizes=[1], pin="sequential", wait=True)
        (plan,) = client.model("pinned").schedules
        assert plan.contest is not None
        tried = {candidate.name for candidate in plan.contest.candidates}
        assert plan.contest.pinned == ("sequential" in tried)
