"""FP32 models on 8-bit integers: from the command line to answers, the same after a restart."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from braid.core.precision import INT8
from braid.engine.cpu.device_key import offered_precisions
from braid.server.cli.main import main
from braid_client import Client
from tests.engine.quantised.models import NETWORKS, normal
from tests.service.server_process import ServerProcess
from tests.service.test_auto_precision import WIDTH, cancelling

pytestmark = pytest.mark.ci

HAS_INT8 = INT8 in offered_precisions()
needs_int8 = pytest.mark.skipif(not HAS_INT8, reason="the CPU has no VNNI")
ACCEPTED = 0.05


def residual(path: Path) -> tuple[Path, np.ndarray]:
    """Convolutions, residual sums and a classifier; twelve samples of its input."""
    network, output = NETWORKS["residual"]()
    path.write_bytes(network.model(output).SerializeToString())
    return path, normal(np.random.default_rng(11), (12, *network.shape)).astype(np.float32)


def huge_and_cancelling(path: Path) -> tuple[Path, np.ndarray]:
    """Sums that cancel, and samples of very different sizes: most are less than half a step."""
    rng = np.random.default_rng(6)
    sizes = np.float32(10.0) ** rng.uniform(-2, 3, size=(12, WIDTH)).astype(np.float32)
    return cancelling(path), sizes * rng.choice(np.array([-1, 1], np.float32), size=sizes.shape)


def answers(client: Client, name: str, rows: np.ndarray) -> np.ndarray:
    """The model's only output, of one row a request."""
    found = [client.infer(name, {"x": rows[at : at + 1]}) for at in range(len(rows))]
    return np.concatenate([next(iter(each.outputs.values())) for each in found])


def provenance(client: Client, name: str, batch_size: int = 1) -> dict[str, Any]:
    """How a model's schedule came to be."""
    found: dict[str, Any] = client.schedule(name, batch_size)[0]["provenance"]
    return found


@needs_int8
def test_a_model_on_integers_says_so_and_serves_the_same_after_a_restart(
    server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, rows = residual(tmp_path / "residual.onnx")
    samples = tmp_path / "samples.npz"
    np.savez(samples, x=rows)
    server.start()
    server.import_ahead(path)
    address = ["--address", server.address]
    options = ["--precision", INT8, "--accept-error", str(ACCEPTED), "--samples", str(samples)]
    options += ["--batch-sizes", "1,4", "--planner", "sequential"]

    assert main(["register", "residual", str(path), *options, "--wait", *address]) == 0
    capsys.readouterr()
    assert main(["schedule", "show", "residual", *address]) == 0
    shown = capsys.readouterr().out
    page = server.http("/console/schedules/residual/1/1?device=cpu")
    with server.client() as client:
        plans = client.model("residual").schedules
        how = [provenance(client, "residual", size)["quantisation"] for size in (1, 4)]
        first = answers(client, "residual", rows)

    (expected,) = onnxruntime.InferenceSession(path).run(None, {"x": rows})
    error = float(np.abs(first - expected).max() / np.abs(expected).max())
    assert 0 < error <= ACCEPTED
    assert how[0] == how[1]
    assert {(plan.precision, plan.promoted, plan.samples) for plan in plans} == {(INT8, True, 12)}
    narrow = how[0]["candidates"] - len(how[0]["wide"])
    assert narrow > 0
    for text in (shown, page):
        assert f"{narrow} of {how[0]['candidates']} units with weights, by " in text
        assert "on 12 samples" in text
    labels = {"model": "residual", "batch_size": "1"}
    assert server.metric("braid_schedule_precision", precision=INT8, **labels) == 1
    told = next(plan.max_rel_error for plan in plans if plan.batch_size == 1)
    assert 0 < server.metric("braid_schedule_error_ratio", **labels) == told <= ACCEPTED

    assert server.stop() == 0
    server.start()
    with server.client() as client:
        again = client.model("residual").schedules
        np.testing.assert_array_equal(answers(client, "residual", rows), first)
        assert provenance(client, "residual")["quantisation"] == how[0]
    assert [plan.plan_id for plan in again] == [plan.plan_id for plan in plans]


@needs_int8
def test_auto_serves_within_the_error_and_fp32_within_a_hundred_thousandth(
    shared: ServerProcess, tmp_path: Path
) -> None:
    path, rows = residual(tmp_path / "residual.onnx")
    shared.import_ahead(path)
    (expected,) = onnxruntime.InferenceSession(path).run(None, {"x": rows})
    with shared.client() as client:
        for name, accepted in (("loose", ACCEPTED), ("strict", 1e-5)):
            client.register(
                *(name, path), precision="auto", accepted_error=accepted, samples={"x": rows},
                planner="sequential", batch_sizes=[1], wait=True,
            )  # fmt: skip
        (loose,), (strict,) = (client.model(name).schedules for name in ("loose", "strict"))
        found = {name: provenance(client, name)["candidates"] for name in ("loose", "strict")}
        answered = answers(client, "loose", rows)
        for name in ("loose", "strict"):
            client.delete(name)

    tried = {name: {each["precision"]: each for each in found[name]} for name in found}
    assert loose.max_rel_error <= ACCEPTED
    assert 0 < tried["loose"][INT8]["max_rel_error"] <= ACCEPTED
    assert np.abs(answered - expected).max() <= ACCEPTED * np.abs(expected).max()
    assert strict.precision == "fp32"
    assert "1e-05 is allowed" in tried["strict"][INT8]["remark"]


@needs_int8
def test_huge_ranges_and_sums_that_cancel_stay_in_fp32_under_auto(
    shared: ServerProcess, tmp_path: Path
) -> None:
    path, rows = huge_and_cancelling(tmp_path / "cancelling.onnx")
    shared.import_ahead(path)
    with shared.client() as client:
        client.register(
            *("cancelling8", path), precision="auto", accepted_error=1e-2, samples={"x": rows},
            planner="sequential", batch_sizes=[1], wait=True,
        )  # fmt: skip
        (plan,) = client.model("cancelling8").schedules
        seen = provenance(client, "cancelling8")
        answered = answers(client, "cancelling8", rows)
        client.delete("cancelling8")

    tried = {each["precision"]: each for each in seen["candidates"]}
    (expected,) = onnxruntime.InferenceSession(path).run(None, {"x": rows})
    assert plan.precision == "fp32"
    assert tried[INT8]["max_rel_error"] > 0.1
    assert "0.01 is allowed" in tried[INT8]["remark"]
    assert "most is lost in" in tried[INT8]["remark"]
    assert np.abs(answered - expected).max() <= 1e-2 * np.abs(expected).max()
