from collections.abc import Iterator

import numpy as np
import pytest

from braid.server.security.tokens import new_token
from braid_client import (
    Client,
    FailedPrecondition,
    InvalidArgument,
    JobState,
    ModelNotFound,
    PermissionDenied,
    RetryPolicy,
    Unauthenticated,
)
from tests.models.small import small_cnn
from tests.service.oip.rest import call
from tests.service.server_process import ServerProcess

ADMIN, INFER = new_token(), new_token()
AGAIN = "/v2/models/cnn/schedule/again"
ROW = {"x": np.zeros((1, 3, 16, 16), np.float32)}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with tokens of both roles and a model at batch sizes 1 and 4."""
    folder = tmp_path_factory.mktemp("again")
    with ServerProcess(
        folder / "store", BRAID_ADMIN_TOKEN=ADMIN, BRAID_INFER_TOKEN=INFER
    ).start() as server:
        yield server.register({"cnn": small_cnn(folder / "cnn.onnx")}, (1, 4))


def client_of(server: ServerProcess, token: str | None) -> Client:
    return Client(server.address, token=token, retry=RetryPolicy(max_attempts=1))


def ended(client: Client, job_id: str) -> JobState:
    *_, job = client.watch_job(job_id)
    return job.state


def test_a_schedule_is_made_again_while_the_model_serves(guarded: ServerProcess) -> None:
    with client_of(guarded, ADMIN) as client:
        job = client.schedule_again("cnn", batch=4, device="cpu")
        assert (job.model, job.version) == ("cnn", "1")
        client.infer("cnn", ROW)
        assert ended(client, job.id) is JobState.READY
        assert client.jobs("cnn")[0].id == job.id


def test_what_cannot_be_scheduled_again_is_refused_with_what_to_do(guarded: ServerProcess) -> None:
    with client_of(guarded, ADMIN) as client:
        with pytest.raises(ModelNotFound):
            client.schedule_again("nothing")
        with pytest.raises(InvalidArgument, match="scheduled for batch sizes 1, 4, not for 3"):
            client.schedule_again("cnn", batch=3)
        with pytest.raises(InvalidArgument, match="scheduled for batch sizes 1, 4, not for -1"):
            client.schedule_again("cnn", batch=-1)
        with pytest.raises(InvalidArgument, match="no device 'gpu'; devices: cpu"):
            client.schedule_again("cnn", device="gpu")


def test_only_admins_may_ask_for_it(guarded: ServerProcess) -> None:
    with client_of(guarded, INFER) as client:
        client.infer("cnn", ROW)
        with pytest.raises(PermissionDenied):
            client.schedule_again("cnn")
    with client_of(guarded, None) as client, pytest.raises(Unauthenticated):
        client.schedule_again("cnn")
    assert call(guarded, AGAIN, {}).status == 401
    assert call(guarded, AGAIN, {}, authorization=f"Bearer {INFER}").status == 403
    with client_of(guarded, ADMIN) as client:
        assert all(job.ended for job in client.jobs())


def test_rest_answers_with_the_job(guarded: ServerProcess) -> None:
    token = f"Bearer {ADMIN}"
    one = {"batch_size": 1, "device": "cpu"}
    of_version = "/v2/models/cnn/versions/1/schedule/again"
    for path, body in ((AGAIN, one), (of_version, one), (AGAIN, b"")):
        answer = call(guarded, path, body, authorization=token)
        assert answer.status == 200, answer.body
        assert (answer.json["model"], answer.json["version"]) == ("cnn", "1")
        with client_of(guarded, ADMIN) as client:
            assert ended(client, answer.json["id"]) is JobState.READY


def test_a_model_that_is_unloaded_is_to_be_loaded_first(guarded: ServerProcess) -> None:
    token = f"Bearer {ADMIN}"
    assert call(guarded, "/v2/repository/models/cnn/unload", {}, authorization=token).status == 200
    try:
        with (
            client_of(guarded, ADMIN) as client,
            pytest.raises(FailedPrecondition, match="does not serve; load it first"),
        ):
            client.schedule_again("cnn", version=1)
    finally:
        load = "/v2/repository/models/cnn/load"
        assert call(guarded, load, {}, authorization=token).status == 200
