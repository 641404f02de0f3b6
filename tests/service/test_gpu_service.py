"""The whole service on a GPU, through gRPC: ``make gpu`` runs this last."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from braid_client import Client, InvalidArgument
from tests.clock import until
from tests.service.server_process import ServerProcess

pytestmark = pytest.mark.gpu

GPU, CPU = "cuda:0", "cpu"
ROWS = np.random.default_rng(0).normal(size=(4, 3, 16, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with the GPU first and the CPU beside it."""
    made = ServerProcess(
        tmp_path_factory.mktemp("gpu") / "store", BRAID_DEVICES=f"{GPU},{CPU}", BRAID_THREADS="2"
    ).start()
    yield made
    assert made.stop() == 0


@pytest.fixture(scope="module")
def client(server: ServerProcess, models: dict[str, Path]) -> Iterator[Client]:
    with server.client() as opened:
        for name, path in models.items():
            opened.register(name, path, batch_sizes=[1, 4], wait=True)
        yield opened


def expected(model: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


def agrees(client: Client, models: dict[str, Path], rows: int) -> None:
    x = ROWS[:rows]
    for name, wanted in expected(models["cnn"], {"x": x}).items():
        got = client.infer("cnn", {"x": x}).outputs[name]
        np.testing.assert_allclose(got, wanted, atol=1e-4 * np.abs(wanted).max())


def test_each_device_has_schedules_and_answers_agree_with_onnxruntime(
    client: Client, models: dict[str, Path]
) -> None:
    devices = {plan.device for plan in client.model("cnn").schedules}
    document, _ = client.schedule("cnn", 1, GPU)

    assert devices == {GPU, CPU}
    assert document["key"]["device_key"].startswith(f"{GPU[:3]}")
    for rows in (1, 3, 4):
        agrees(client, models, rows)


def test_a_precision_must_be_one_of_every_device(client: Client, models: dict[str, Path]) -> None:
    with pytest.raises(
        InvalidArgument, match=r"cpu computes in fp32(, bf16)?(, int8)?, not in fp16"
    ):
        client.register("half", models["cnn"], precision="fp16")


@pytest.mark.parametrize("precision", ["tf32", "fp16", "bf16"])
def test_a_gpu_alone_serves_in_other_precisions(
    precision: str, models: dict[str, Path], tmp_path: Path
) -> None:
    server = ServerProcess(tmp_path / "store", BRAID_DEVICES=GPU).start()
    with server.client() as client:
        client.register("cnn", models["cnn"], batch_sizes=[1], precision=precision, wait=True)
        (plan,) = client.model("cnn").schedules
        x = ROWS[:1]
        got = client.infer("cnn", {"x": x})
        rows = server.metric("braid_batch_rows_count", model="cnn", device=GPU)
    assert server.stop() == 0
    assert rows > 0, "the GPU really ran"

    assert (plan.precision, plan.promoted, got.plan_id) == (precision, True, plan.plan_id)
    assert plan.max_rel_error < 0.05
    if precision != "tf32":  # for which cuDNN may find kernels in FP32 faster where little is to do
        assert plan.max_rel_error > 1e-5
    for name, wanted in expected(models["cnn"], {"x": x}).items():
        assert got.outputs[name].dtype == np.float32
        np.testing.assert_allclose(got.outputs[name], wanted, atol=0.05 * np.abs(wanted).max())


def test_an_index_out_of_range_is_refused_and_the_worker_lives(
    server: ServerProcess, client: Client
) -> None:
    before = server.metric("braid_worker_restarts_total")

    with pytest.raises(InvalidArgument, match="index"):
        client.infer("embedding", {"ids": np.full((1, 4), 2**30)})

    assert server.metric("braid_worker_restarts_total") == before


def test_a_killed_worker_is_replaced_and_serves_the_same_plans(
    server: ServerProcess, client: Client, models: dict[str, Path]
) -> None:
    ids = {plan.plan_id for plan in client.model("cnn").schedules if plan.promoted}

    os.kill(server.worker_of(GPU), signal.SIGKILL)

    for rows in (1, 4):
        agrees(client, models, rows)  # of a model so small that the CPU may be as fast
    until(lambda: server.metric("braid_worker_restarts_total", device=GPU, reason="killed"))
    for rows in (1, 4):
        agrees(client, models, rows)
    assert {plan.plan_id for plan in client.model("cnn").schedules if plan.promoted} == ids
