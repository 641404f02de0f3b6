from collections.abc import Iterator

import numpy as np
import pytest

from braid_client import Client, FailedPrecondition, InvalidArgument, JobState, ModelNotFound
from tests.models.small import small_cnn
from tests.service.oip.rest import call
from tests.service.server_process import ServerProcess

AGAIN = "/v2/models/cnn/schedule/again"
ROW = {"x": np.zeros((1, 3, 16, 16), np.float32)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with a model at batch sizes 1 and 4."""
    folder = tmp_path_factory.mktemp("again")
    with ServerProcess(folder / "store").start() as server:
        yield server.register({"cnn": small_cnn(folder / "cnn.onnx")}, (1, 4))


def ended(client: Client, job_id: str) -> JobState:
    *_, job = client.watch_job(job_id)
    return job.state


def test_a_schedule_is_made_again_while_the_model_serves(server: ServerProcess) -> None:
    with server.client() as client:
        job = client.schedule_again("cnn", batch=4, device="cpu")
        assert (job.model, job.version) == ("cnn", "1")
        client.infer("cnn", ROW)
        assert ended(client, job.id) is JobState.READY
        assert client.jobs("cnn")[0].id == job.id


def test_what_cannot_be_scheduled_again_is_refused_with_what_to_do(server: ServerProcess) -> None:
    with server.client() as client:
        with pytest.raises(ModelNotFound):
            client.schedule_again("nothing")
        with pytest.raises(InvalidArgument, match="scheduled for batch sizes 1, 4, not for 3"):
            client.schedule_again("cnn", batch=3)
        with pytest.raises(InvalidArgument, match="scheduled for batch sizes 1, 4, not for -1"):
            client.schedule_again("cnn", batch=-1)
        with pytest.raises(InvalidArgument, match="no device 'gpu'; devices: cpu"):
            client.schedule_again("cnn", device="gpu")


def test_rest_answers_with_the_job(server: ServerProcess) -> None:
    one = {"batch_size": 1, "device": "cpu"}
    of_version = "/v2/models/cnn/versions/1/schedule/again"
    for path, body in ((AGAIN, one), (of_version, one), (AGAIN, b"")):
        answer = call(server, path, body)
        assert answer.status == 200, answer.body
        assert (answer.json["model"], answer.json["version"]) == ("cnn", "1")
        with server.client() as client:
            assert ended(client, answer.json["id"]) is JobState.READY


def test_a_model_that_is_unloaded_is_to_be_loaded_first(server: ServerProcess) -> None:
    assert call(server, "/v2/repository/models/cnn/unload", {}).status == 200
    try:
        with (
            server.client() as client,
            pytest.raises(FailedPrecondition, match="does not serve; load it first"),
        ):
            client.schedule_again("cnn", version=1)
    finally:
        load = "/v2/repository/models/cnn/load"
        assert call(server, load, {}).status == 200
