from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from braid_client import Client
from tests.clock import until
from tests.service.server_process import FOR_TESTS, ServerProcess, free_port

HELD = """
import sys, time
from pathlib import Path
while "braid.engine.processes.fork_server" in sys.orig_argv and not Path({go!r}).exists():
    time.sleep(0.01)
"""
"""A ``sitecustomize`` that holds up the fork server, and so all devices."""


def status(url: str, data: bytes | None = None) -> tuple[int, str]:
    """Status and text of a page; 0: nobody listens."""
    try:
        with urlopen(url, data, timeout=240) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()
    except URLError:
        return 0, ""


@pytest.mark.ci
def test_health_is_told_before_a_device_is_up_and_calls_wait_for_it(tmp_path: Path) -> None:
    go = tmp_path / "go"
    (tmp_path / "sitecustomize.py").write_text(HELD.format(go=str(go)))
    grpc_port, http = free_port(), free_port()
    server = ServerProcess(tmp_path / "store", command=FOR_TESTS, PYTHONPATH=str(tmp_path))
    with ThreadPoolExecutor() as threads, Client(f"127.0.0.1:{grpc_port}") as client:
        try:
            started = threads.submit(server.start, str(grpc_port), ["--http-port", str(http)])
            until(lambda: status(f"http://127.0.0.1:{http}/healthz") == (200, "ok\n"))
            waits = status(f"http://127.0.0.1:{http}/readyz")
            with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
                asked = health_pb2.HealthCheckRequest(service="")
                check = health_pb2_grpc.HealthStub(channel).Check
                health = check(asked, timeout=120, wait_for_ready=True).status
            models = threads.submit(client.models, timeout_s=240)
            index = f"http://127.0.0.1:{http}/v2/repository/index"
            page = threads.submit(status, index, b"{}")  # a POST, which is not bounded in time
            was_answered = models.done() or page.done() or started.done()
            go.touch()
            answers = models.result(240), page.result(240)
            started.result(240)
        finally:
            go.touch()
            server.end()

    assert waits == (503, "not ready: the server starts; no device is up\n")
    assert health == health_pb2.HealthCheckResponse.NOT_SERVING
    assert not was_answered
    assert answers == ([], (200, "[]"))
