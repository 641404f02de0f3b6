"""A quantised model from its registration over a restart, beside ONNX Runtime on the same file."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from braid.engine.cpu.device_key import has_integer_kernels
from tests.engine.quantised.models import NETWORKS, normal, quantised
from tests.service.server_process import ServerProcess

pytestmark = pytest.mark.ci


@pytest.mark.parametrize("operators", [False, True])
def test_a_quantised_model_is_scheduled_and_served_from_its_store(
    server: ServerProcess, operators: bool, tmp_path: Path
) -> None:
    per_channel = not operators
    file = quantised(
        "branches", tmp_path, signed=False, per_channel=per_channel, operators=operators
    )
    network, _ = NETWORKS["branches"]()
    x = normal(np.random.default_rng(3), (4, *network.shape))
    (wanted,) = onnxruntime.InferenceSession(file).run(None, {"x": x})
    server.start()
    with server.client() as client:
        client.register("narrow", file, batch_sizes=[1, 4], planner="portfolio", wait=True)
        plans = {plan.plan_id for plan in client.model("narrow").schedules}
        document, graph = client.schedule("narrow", 4)
        (first,) = client.infer("narrow", {"x": x}).outputs.values()
    assert server.stop() == 0
    server.start()
    with server.client() as client:
        again = client.model("narrow")
        (second,) = client.infer("narrow", {"x": x}).outputs.values()

    assert {plan.plan_id for plan in again.schedules} == plans
    kinds = {operator["kind"] for operator in graph["operators"]}
    assert ("braid.quantised_unit" in kinds) is has_integer_kernels()
    assert {each["name"] for each in document["provenance"]["candidates"]} >= {"sequential"}
    for got in (first, second):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=0.02 * np.abs(wanted).max())
