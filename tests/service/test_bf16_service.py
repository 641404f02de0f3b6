from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from braid.core.precision import BF16
from braid.engine.cpu.device_key import offered_precisions
from braid_client import InvalidArgument
from tests.service.server_process import ServerProcess

ROWS = np.random.default_rng(0).normal(size=(1, 3, 16, 16)).astype(np.float32)


@pytest.mark.ci
def test_a_model_is_served_in_bf16_or_refused(
    shared: ServerProcess, models: dict[str, Path]
) -> None:
    with shared.client() as client:
        if BF16 not in offered_precisions():
            with pytest.raises(
                InvalidArgument, match=r"cpu computes in fp32(, int8)?, not in bf16"
            ):
                client.register("narrow", models["cnn"], precision=BF16)
            pytest.skip("a CPU without instructions for BF16")
        client.register(
            "narrow",
            models["cnn"],
            batch_sizes=[1],
            precision=BF16,
            planner="sequential",
            wait=True,
        )
        (plan,) = client.model("narrow").schedules
        document, graph = client.schedule("narrow", 1)
        answer = client.infer("narrow", {"x": ROWS})
        nothing = client.infer("narrow", {"x": np.full_like(ROWS, np.nan)})
        client.delete("narrow")

    (expected,) = onnxruntime.InferenceSession(models["cnn"]).run(None, {"x": ROWS})
    assert (plan.precision, plan.promoted, answer.plan_id) == (BF16, True, plan.plan_id)
    assert 1e-5 < plan.max_rel_error < 0.05
    assert document["key"]["precision"] == BF16
    assert {operator["kind"] for operator in graph["operators"]} >= {"braid.cast"}
    assert answer.outputs["y"].dtype == np.float32
    np.testing.assert_allclose(answer.outputs["y"], expected, atol=0.05 * np.abs(expected).max())
    assert np.isnan(nothing.outputs["y"]).all()
