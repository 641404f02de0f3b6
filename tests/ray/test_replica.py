"""The suites of both protocols against a node as Ray Serve runs it, through its HAProxy.

Server of gRPC, HAProxy and its configuration are Ray Serve's; only the cluster is left out.
"""

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from tests.attack.target import Target
from tests.attack.test_bad_requests import (  # noqa: F401
    attacked,
    test_a_bad_call_is_refused,
    test_a_bad_upload_is_refused_and_leaves_nothing,
)
from tests.models.small import doubling, embedding, product, small_cnn, two_inputs
from tests.service.oip.conftest import stub  # noqa: F401
from tests.service.oip.test_bad_requests import test_a_request_s_own_parameters_are_ignored  # noqa: F401
from tests.service.oip.test_other_clients import test_a_client_that_knows_only_reflection_infers  # noqa: F401
from tests.service.server_process import ServerProcess, free_port, serving
from tests.service.test_bad_requests import (  # noqa: F401
    channel,
    test_a_file_that_is_no_model_fails_its_job_only,
    test_a_message_over_the_limit_is_refused_and_the_server_goes_on,
)
from tests.service.test_requests_in_time import (  # noqa: F401
    test_a_cancelled_call_leaves_and_its_neighbour_is_answered,
    test_a_deadline_that_passes_in_the_queue_ends_the_request,
    test_a_stream_answers_every_request_and_goes_on_after_an_error,
    test_a_stream_answers_while_its_requests_still_come,
)
from tests.service.test_service import (  # noqa: F401
    test_answers_are_those_of_onnxruntime,
    test_health_answers_for_the_server_its_liveness_and_each_model,
    test_metrics_tell_what_happened_and_a_made_up_name_makes_no_series,
)

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'braid-serve[ray]'"),
]

REPLICA = (sys.executable, "-m", "tests.ray.replica_process")
OFFERS_MEMORY = {"BRAID_SYSTEM_SHARED_MEMORY": "true", "BRAID_LOG_LEVEL": "INFO"}
MEGABYTES = 200


def replica(folder: Path, **environment: Any) -> ServerProcess:
    """Start a replica and its HAProxy, whose address it has."""
    server = ServerProcess(
        folder / "store", command=REPLICA, BRAID_ALLOW_UNAUTHENTICATED="true", **environment
    )
    return server.start(grpc_port=str(free_port()))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "cnn": small_cnn(folder / "cnn.onnx"),
        "embedding": embedding(folder / "embedding.onnx"),
        "fp32": doubling(folder / "fp32.onnx"),
        "fp16": doubling(folder / "fp16.onnx", TensorProto.FLOAT16),
        "two": two_inputs(folder / "two.onnx"),
    }


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, models: dict[str, Path]
) -> Iterator[ServerProcess]:
    """A replica that serves all models."""
    server = replica(tmp_path_factory.mktemp("replica"), **OFFERS_MEMORY)
    with serving(server, models):
        yield server


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A replica that takes a token, with the models of the table of bad requests."""
    made = Target.start(tmp_path_factory.mktemp("attacked"), REPLICA, str(free_port()))
    try:
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def one_at_a_time(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A replica with the model ``slow``, which takes tens of milliseconds a row."""
    folder = tmp_path_factory.mktemp("slow")
    server = replica(folder, BRAID_SIDE_BY_SIDE="false")
    try:
        with server.client() as client:
            file = small_cnn(folder / "slow.onnx", branches=8, size=192)
            client.register("slow", file, batch_sizes=[1], planner="sequential", wait=True)
        yield server
    finally:
        code = server.stop()
    assert code == 0


@pytest.fixture(scope="module")
def oip_server(shared: ServerProcess) -> ServerProcess:
    """The same server, for the suite of the Open Inference Protocol."""
    return shared


def test_an_upload_of_200_megabytes_goes_through(shared: ServerProcess, tmp_path: Path) -> None:
    file = product(tmp_path / "large.onnx", np.zeros((1000, MEGABYTES * 250), np.float32))
    with shared.client() as client:
        job = client.register("large", file, batch_sizes=[1])
        [found] = (each for each in client.models() if each.name == "large")
        client.cancel_job(job.id)
        client.delete("large")

    assert found.size_bytes == file.stat().st_size > MEGABYTES * 1_000_000
