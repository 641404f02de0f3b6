"""What ONNX Runtime runs is served: small models of each kind, against ONNX Runtime on the file."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from braid_client import Client, JobState
from tests.models.kinds import KINDS
from tests.service.server_process import ServerProcess


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with (
        ServerProcess(tmp_path_factory.mktemp("kinds") / "store").start() as server,
        Client(server.address) as client,
    ):
        yield client


@pytest.mark.ci
@pytest.mark.parametrize("name", KINDS)
def test_it_answers_what_onnxruntime_does(name: str, client: Client, tmp_path: Path) -> None:
    kind = KINDS[name]
    (tmp_path / "model.onnx").write_bytes(kind.model)
    session = onnxruntime.InferenceSession(kind.model)

    job = client.register(
        name.replace(" ", "_"),
        tmp_path / "model.onnx",
        wait=True,
        planner="sequential",
        input_shapes=kind.shapes,
    )

    assert job.state is JobState.READY, job.message
    for feed in kind.feeds:
        found = client.infer(name.replace(" ", "_"), dict(feed)).outputs
        for output, wanted in zip(session.get_outputs(), session.run(None, feed), strict=True):
            got = found[output.name]
            assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), output.name
            if not kind.is_random:
                np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5, err_msg=output.name)
