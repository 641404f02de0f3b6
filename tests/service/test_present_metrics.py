import re
from pathlib import Path

import pytest

from tests.models.small import small_cnn
from tests.service.server_process import ServerProcess


def series(server: ServerProcess, model: str) -> set[str]:
    """Names of the series that carry a model's name, by version: ``NAME 1``."""
    lines = [line for line in server.http("/metrics").splitlines() if f'model="{model}"' in line]
    versions = [re.search(r'version="(\d+)"', line) for line in lines]
    return {
        f"{re.split('[{ ]', line)[0]} {found[1]}"
        for line, found in zip(lines, versions, strict=True)
        if found
    }


@pytest.mark.ci
def test_a_running_server_tells_what_it_is_and_has(server: ServerProcess, tmp_path: Path) -> None:
    model = small_cnn(tmp_path / "cnn.onnx")
    server.start().register({"cnn": model}, planner="")

    assert server.metric("braid_build_info") == 1
    assert server.metric("braid_ready") == 1
    assert server.metric("braid_device_up", device="cpu") == 1
    assert server.metric("braid_model_ready", model="cnn", version="1") == 1
    assert server.metric("braid_models", state="SERVING") == 1
    weights = server.metric("braid_model_memory_bytes", model="cnn", kind="weights")
    assert weights >= model.stat().st_size // 2
    assert server.metric("braid_model_memory_bytes", model="cnn", kind="activations") > 0
    serving = server.metric("braid_worker_memory_bytes", process="serving", memory="host")
    limit = server.metric("braid_worker_memory_limit_bytes", device="cpu")
    assert 50 << 20 < serving < limit
    assert server.metric("braid_store_bytes") > model.stat().st_size
    assert server.metric("braid_upload_bytes_sum") == model.stat().st_size
    assert "_created" not in server.http("/metrics")
