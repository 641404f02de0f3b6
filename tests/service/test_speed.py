import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from braid.core.measurement import Speed, speed_text
from braid.core.schedule import Contender, Schedule, schedule_from_json
from braid.server.cli.main import main
from braid.server.cli.remote.models import print_details
from tests.models.small import small_cnn
from tests.service.contests import change_schedules
from tests.service.server_process import ServerProcess

SHOWN = "1.031x (1.012 to 1.048)"
SPEED = Speed(1.0312, 1.0118, 1.0482)


def claimed(schedule: Schedule) -> Schedule:
    """A schedule of a planner whose plan was measured like this."""
    sequential = replace(schedule.provenance.candidates[0], latency_us=9630.0, spread=0.021)
    found = Contender(
        "greedy", 10420.0, 0.034, 99, SPEED.median, 1e-6,
        speedup_least=SPEED.least, speedup_most=SPEED.most,
    )  # fmt: skip
    other = Contender("onnxruntime", 9800.0, 0.02, 99, 1.05)
    seen = replace(
        schedule.provenance, measured_us=10420.0, sequential_us=9630.0, spread=0.034,
        candidates=(sequential, found, other), promoted=True, reason="",
    )  # fmt: skip
    return replace(schedule, planner="greedy", provenance=seen)


@pytest.fixture
def claiming(server: ServerProcess, tmp_path: Path) -> ServerProcess:
    """A server with one model, whose schedule is as ``claimed`` has it."""
    server.start().register({"cnn": small_cnn(tmp_path / "cnn.onnx")})
    assert server.stop() == 0
    change_schedules(server.store, claimed)
    return server.start()


def test_all_surfaces_show_one_ratio_with_one_interval_and_one_plan_id(
    claiming: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    def braid(*arguments: str) -> str:
        assert main([*arguments, "--address", claiming.address]) == 0
        return " ".join(capsys.readouterr().out.split())

    assert speed_text(SPEED) == SHOWN
    with claiming.client() as client:
        (plan,) = client.model("cnn").schedules
        document, _ = client.schedule("cnn")
        answer = client.infer("cnn", {"x": np.zeros((1, 3, 16, 16), np.float32)})
        print_details(client.model("cnn"))
    registered = " ".join(capsys.readouterr().out.split())

    # Beside the best other runtime, which is no plan of ours.
    assert (plan.best_other, round(plan.best_other_ratio, 4)) == ("onnxruntime", 0.9405)
    assert "0.94x ONNX Runtime" in registered
    assert "beside the best other runtime: 0.94x ONNX Runtime" in braid("schedule", "show", "cnn")
    for page in ("models/cnn", "schedules/cnn/1/1"):
        assert "0.94x ONNX Runtime" in claiming.http(f"/console/{page}"), page

    # The SDK and the artefact.
    assert Speed(plan.speedup, plan.speedup_least, plan.speedup_most) == SPEED
    assert (plan.spread, plan.sequential_spread) == (0.034, 0.021)
    schedule = schedule_from_json(document)
    assert schedule.speed == SPEED
    # Metrics.
    labels = {"model": "cnn", "batch_size": "1"}
    for name, value in (
        ("speedup_ratio", SPEED.median),
        ("speedup_least_ratio", SPEED.least),
        ("speedup_most_ratio", SPEED.most),
        ("latency_spread_ratio", 0.034),
        ("sequential_latency_spread_ratio", 0.021),
    ):
        assert claiming.metric(f"braid_schedule_{name}", **labels) == value
    # The command line.
    assert f"9.63 ms (2.1%) 10.42 ms (3.4%) {SHOWN}" in registered
    assert SHOWN in braid("models", "cnn")
    (listed,) = json.loads(braid("models", "--json"))
    assert listed["schedules"][0]["speedup_most"] == SPEED.most
    shown = braid("schedule", "show", "cnn")
    assert f"measured 10.42 ms (3.4%), sequential 9.63 ms (2.1%), speed-up {SHOWN}" in shown
    assert f"greedy 10.42 ms 3.4% 99 {SHOWN}" in shown
    assert f"{SHOWN} sequential" in braid("schedule", "diff", "cnn")
    # The console.
    pages = ("models/cnn?version=1", "schedules/cnn/1/1?device=cpu")
    for page in pages:
        assert SHOWN in claiming.http(f"/console/{page}"), page
    # Which plan ran.
    assert answer.plan_id == plan.plan_id == schedule.plan_id
    assert plan.plan_id in registered
    assert plan.plan_id in shown
    assert plan.plan_id in claiming.http(f"/console/{pages[-1]}")
