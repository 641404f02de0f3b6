import os
import signal
from pathlib import Path
from urllib.error import HTTPError

import numpy as np
import pytest

from braid_client import Client, DeadlineExceeded, FailedPrecondition, Unavailable
from tests.clock import until
from tests.models.endless import FOREVER, endless
from tests.models.small import identity
from tests.service.server_process import ServerProcess

ROW = np.ones((1, 3), np.float32)
ONES = np.ones((1, 4), np.float32)
PATIENCE_S = 60.0


def is_ready(server: ServerProcess) -> bool:
    try:
        server.http("/readyz")
    except HTTPError as error:
        if error.code == 503:
            return False
        raise
    return True


def with_models(server: ServerProcess, folder: Path) -> ServerProcess:
    """A server with a model that may never end, and one that always does."""
    models = {"endless": endless(folder / "e.onnx"), "other": identity(folder / "o.onnx")}
    return server.start().register(models)


@pytest.mark.ci
def test_a_run_without_end_costs_only_its_caller(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "store", BRAID_MAX_RUN_SECONDS="0.5") as server,
        with_models(server, tmp_path).client() as client,
    ):
        worker = server.worker_pid
        with pytest.raises(DeadlineExceeded):
            client.infer("endless", {"x": FOREVER}, timeout_s=0.3)
        assert client.infer("other", {"x": ROW}).outputs["y"].tolist() == ROW.tolist()
        _goes_too_far_three_times(client)
        with pytest.raises(FailedPrecondition, match="held its device up 3 times"):
            client.infer("endless", {"x": ONES})
        assert client.infer("other", {"x": ROW}).outputs["y"].tolist() == ROW.tolist()
        assert server.worker_pid == worker, "ONNX Runtime ended the runs"
        assert is_ready(server)


def _goes_too_far_three_times(client: Client) -> None:
    for _ in range(3):
        np.testing.assert_allclose(
            client.infer("endless", {"x": ONES}).outputs["y"], np.sin(ONES), rtol=1e-6
        )
        with pytest.raises(DeadlineExceeded, match=r"ended after 0\.\d+ s .* BRAID_MAX_RUN"):
            client.infer("endless", {"x": FOREVER}, timeout_s=PATIENCE_S)


@pytest.mark.ci
def test_a_worker_that_was_stopped_is_replaced_when_a_request_is_late(
    server: ServerProcess, tmp_path: Path
) -> None:
    with with_models(server, tmp_path).client() as client:
        stopped = server.worker_pid
        os.kill(stopped, signal.SIGSTOP)
        with pytest.raises((DeadlineExceeded, Unavailable)):
            client.infer("other", {"x": ROW}, timeout_s=0.3)
        until(lambda: server.worker_pid != stopped)
        until(lambda: is_ready(server))
        assert client.infer("other", {"x": ROW}).outputs["y"].tolist() == ROW.tolist()
    assert server.metric("braid_worker_restarts_total", reason="hung") == 1
    assert "it did not answer" in server.log
