from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from braid.core.measurement import SideBySideRuns, Speed
from braid.core.schedule import Schedule
from braid.server.cli.main import main
from braid_client import Client
from tests.models.small import small_cnn
from tests.service.contests import change_schedules
from tests.service.server_process import ServerProcess

CALLERS, EACH = 16, 8
FOUND = SideBySideRuns(2, "", 1.0, Speed(1.25, 1.125, 1.5))
"""Two at once pay, and much."""

SHOWN = "2 at once (sequential), 0.00 ms each: 1.250x (1.125 to 1.500) the runs a second"


def claimed(schedule: Schedule) -> Schedule:
    """A schedule that says so."""
    seen = replace(schedule.provenance, measured_us=1e6, side_by_side=FOUND)
    return replace(schedule, provenance=seen)


@contextmanager
def serving(tmp_path: Path, path: Path, setting: str) -> Iterator[ServerProcess]:
    """A server with one model whose schedule is as ``claimed`` has it."""
    with ServerProcess(tmp_path / "store", BRAID_THREADS="2", BRAID_SIDE_BY_SIDE=setting) as server:
        server.start().register({"cnn": path})
        assert server.stop() == 0
        change_schedules(server.store, claimed)
        yield server.start()


def plans_under_load(client: Client, path: Path) -> set[str]:
    """Plans that ran for many callers at once, all of whose answers were right."""
    session = onnxruntime.InferenceSession(path)
    inputs = np.random.default_rng(0).standard_normal((CALLERS, 1, 3, 16, 16), np.float32)
    right = [session.run(None, {"x": x})[0] for x in inputs]

    def caller(number: int) -> set[str]:
        plans = set()
        for _ in range(EACH):
            answer = client.infer("cnn", {"x": inputs[number]})
            (y,) = answer.outputs.values()
            np.testing.assert_allclose(y, right[number], atol=1e-4 * np.abs(right[number]).max())
            plans.add(answer.plan_id)
        return plans

    with ThreadPoolExecutor(CALLERS) as pool:
        return set().union(*pool.map(caller, range(CALLERS)))


@pytest.mark.ci
def test_sixteen_callers_run_side_by_side_under_the_plan_that_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = small_cnn(tmp_path / "cnn.onnx")
    with serving(tmp_path, path, "true") as server:
        with server.client() as client:
            (plan,) = client.model("cnn").schedules
            ran = plans_under_load(client, path)

        beside = plan.side_by_side
        assert beside is not None
        assert (beside.count, beside.planner, beside.latency_us) == (2, "sequential", 1.0)
        assert Speed(beside.gain, beside.gain_least, beside.gain_most) == FOUND.gain
        assert beside.plan_id in ran
        assert ran <= {beside.plan_id, plan.plan_id if plan.promoted else "sequential"}
        assert main(["schedule", "show", "cnn", "--address", server.address]) == 0
        assert f"{SHOWN}, plan {beside.plan_id}" in " ".join(capsys.readouterr().out.split())
        page = server.http("/console/schedules/cnn/1/1?device=cpu")
        assert SHOWN in page
        assert beside.plan_id in page


@pytest.mark.ci
def test_switched_off_what_was_stored_is_not_used(tmp_path: Path) -> None:
    path = small_cnn(tmp_path / "cnn.onnx")
    with serving(tmp_path, path, "false") as server, server.client() as client:
        ran = plans_under_load(client, path)

    assert not any(plan.startswith("side-by-side") for plan in ran)
