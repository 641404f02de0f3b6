from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from braid.core.precision import BF16
from braid.engine.cpu.device_key import offered_precisions
from braid.server.cli.main import main
from braid_client import Client
from tests.models.small import two_layers, written
from tests.service.server_process import ServerProcess

pytestmark = pytest.mark.ci

HAS_BF16 = BF16 in offered_precisions()
WIDTH = 64


def cancelling(path: Path) -> Path:
    """x [batch, 64] -> x (W + 300 U) - x (300 U): in 8 bits nothing is left of x W."""
    rng = np.random.default_rng(5)
    wanted, huge = (rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) for _ in range(2))
    text = f"""(float[batch, {WIDTH}] x) => (float[batch, {WIDTH}] y)
    {{ a = MatMul(x, sum)  b = MatMul(x, huge)  y = Add(a, b) }}"""
    return written(path, text, sum=wanted + 300 * huge, huge=-300 * huge)


def candidates(client: Client, name: str) -> dict[str, dict[str, Any]]:
    """Measured ways to run a model, by planner and precision."""
    document, _ = client.schedule(name, 1)
    return {
        f"{each['name']} in {each['precision']}": each
        for each in document["provenance"]["candidates"]
    }


def test_errors_are_measured_on_samples_which_are_kept_with_the_version(
    server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, samples = two_layers(tmp_path / "classifier.onnx", WIDTH, 10), tmp_path / "samples.npz"
    rows = np.random.default_rng(7).normal(size=(10, WIDTH)).astype(np.float32)
    np.savez(samples, x=rows)
    server.start()
    address = ["--address", server.address]
    options = ["--precision", "auto", "--accept-error", "0.02", "--samples", str(samples)]
    options += ["--batch-sizes", "1,4", "--planner", "sequential"]

    assert main(["register", "classes", str(path), *options, "--wait", *address]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "on 10 samples, the same top class in 100.0%" in shown
    assert main(["schedule", "show", "classes", *address]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "(chosen by auto)" in shown
    assert "FP32 reference on 10 samples" in shown
    with server.client() as client:
        plans = client.model("classes").schedules
        answer = client.infer("classes", {"x": rows})
        precision = plans[0].precision
        labels = {"model": "classes", "batch_size": "1"}
        assert server.metric("braid_schedule_precision", precision=precision, **labels) == 1
        assert server.metric("braid_schedule_top_agreement_ratio", **labels) == 1
        assert server.metric("braid_schedule_error_ratio", **labels) == plans[0].max_rel_error
        if HAS_BF16:
            assert candidates(client, "classes")["sequential in bf16"]["top_agreement"] is not None
    assert {(plan.samples, plan.top_agreement) for plan in plans} == {(10, 1.0)}
    (expected,) = onnxruntime.InferenceSession(path).run(None, {"x": rows})
    np.testing.assert_allclose(answer.outputs["y"], expected, atol=0.02 * np.abs(expected).max())

    assert server.stop() == 0
    server.start()
    with server.client() as client:
        same = client.register(
            *("classes", path), precision="auto", accepted_error=0.02, samples={"x": rows},
            batch_sizes=[1, 4], planner="sequential", wait=True,
        )  # fmt: skip
        other = client.register(
            *("classes", path), precision="auto", accepted_error=0.02, samples={"x": rows[:4]},
            batch_sizes=[1, 4], planner="sequential", wait=True,
        )  # fmt: skip
        assert {each.samples for each in client.model("classes", version=2).schedules} == {4}
    assert (same.already_registered, same.version) == (True, "1")
    assert (other.already_registered, other.version) == (False, "2")
