"""Large tensors as JSON: as in binary, never there as text, and read as slowly as need be."""

import gzip
import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.clock import until
from tests.models.small import written
from tests.service.oip.rest import Answer, call
from tests.service.server_process import ServerProcess

MIB = 1 << 20
COLUMNS = MIB // 2  # each output has 2 MiB
TENSORS = 2 * 4 * COLUMNS
READERS = 24
ROW = np.array([[0.1, 0.2, 0.3]], np.float32)  # whose sum is long as a text
INFER = "/v2/models/wide/infer"


def wide(path: Path) -> Path:
    """x [batch, 3] -> y, z [batch, COLUMNS]: the sum of the row, and its negative."""
    text = f"""(float[batch, 3] x) => (float[batch, {COLUMNS}] y, float[batch, {COLUMNS}] z)
    {{ y = MatMul(x, w)  z = Neg(y) }}"""
    return written(path, text, w=np.ones((3, COLUMNS), np.float32))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("large")
    with ServerProcess(folder / "store", BRAID_CALLS_MEMORY_BYTES="256MiB").start() as server:
        yield server.register({"wide": wide(folder / "wide.onnx")})


def request(*outputs: str, **parameters: Any) -> dict[str, Any]:
    """Asks for outputs in JSON, but for those whose parameters are given."""
    x = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": ROW.tolist()}
    asked = [{"name": name, "parameters": parameters.get(name, {})} for name in outputs]
    return {"inputs": [x], "outputs": asked}


def check(answer: Answer, *names: str) -> None:
    """Raise AssertionError unless an answer has the outputs in JSON, element by element."""
    assert answer.status == 200, answer.body[:1000]
    total = ROW.sum(dtype=np.float32)
    shown = {each["name"]: each for each in answer.json["outputs"]}
    for name in names:
        assert shown[name]["shape"] == [1, COLUMNS]
        found = np.array(shown[name]["data"], np.float32)
        np.testing.assert_array_equal(found, np.full(COLUMNS, {"y": total, "z": -total}[name]))


def nothing_of(server: ServerProcess, metric: str) -> bool:
    return server.metric(metric) == 0


def test_a_large_answer_is_sent_while_it_is_written(server: ServerProcess) -> None:
    answer = call(server, INFER, request("y", "z"))

    check(answer, "y", "z")
    assert answer.headers["transfer-encoding"] == "chunked"
    assert "content-length" not in answer.headers


def test_a_large_answer_may_be_compressed(server: ServerProcess) -> None:
    answer = call(server, INFER, request("y", "z"), Accept_Encoding="gzip, deflate")

    assert answer.headers["content-encoding"] == "gzip"
    check(Answer(200, {}, gzip.decompress(answer.body)), "y", "z")


def test_json_and_binary_tensors_come_together(server: ServerProcess) -> None:
    answer = call(server, INFER, request("y", "z", z={"binary_data": True}))

    check(answer, "y")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert int(answer.headers["content-length"]) == len(answer.body)
    z = np.frombuffer(answer.binary, np.float32)
    np.testing.assert_array_equal(z, np.full(COLUMNS, -ROW.sum(dtype=np.float32)))


def test_http_1_0_is_told_the_length(server: ServerProcess) -> None:
    host, _, port = server.http_address.rpartition(":")
    body = json.dumps(request("y", "z")).encode()
    head = f"POST {INFER} HTTP/1.0\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port)), 120) as connection:
        connection.sendall(head.encode() + body)
        response = http.client.HTTPResponse(connection)
        response.begin()
        answer = Answer(response.status, {}, response.read())

    check(answer, "y", "z")
    assert response.getheader("content-length") == str(len(answer.body))
    assert response.getheader("transfer-encoding") is None


def test_large_answers_follow_each_other_on_one_connection(server: ServerProcess) -> None:
    connection, ports = http.client.HTTPConnection(server.http_address, timeout=120), set()
    for asked in (request("y", "z"), request("y", "z", z={"binary_data": True}), request("z")) * 3:
        connection.request("POST", INFER, json.dumps(asked))
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        answer = Answer(response.status, headers, response.read())
        check(answer, *(each["name"] for each in asked["outputs"] if not each["parameters"]))
        ports.add(connection.sock.getsockname())
    connection.close()

    assert len(ports) == 1


def test_a_small_answer_has_its_length(server: ServerProcess) -> None:
    answer = call(server, INFER, request("y", y={"classification": 3}))

    assert int(answer.headers["content-length"]) == len(answer.body)
    total = ROW.sum(dtype=np.float32)
    assert answer.json["outputs"][0]["data"] == [f"{total:f}:{index}" for index in range(3)]


def test_slow_readers_hold_the_tensors_and_not_their_text(server: ServerProcess) -> None:
    front = psutil.Process(server.process.pid)
    texts = len(call(server, INFER, request("y", "z")).body)
    before = front.memory_info().rss
    body = json.dumps(request("y", "z"))
    with ExitStack() as stack:
        waiting = []
        for _ in range(READERS):
            connection = http.client.HTTPConnection(server.http_address, timeout=120)
            stack.callback(connection.close)
            connection.request("POST", INFER, body)
            waiting.append(connection)
        first = [connection.getresponse() for connection in waiting]  # their heads
        unread = server.metric("braid_unread_answer_bytes")
        grown = front.memory_info().rss - before
        check(call(server, INFER, request("y")), "y")
        for response in first[:3]:
            check(Answer(response.status, {}, response.read()), "y", "z")

    assert unread == READERS * (TENSORS + MIB)
    assert grown < READERS * texts / 3
    for name in ("braid_unread_answer_bytes", "braid_calls_memory_bytes"):
        until(partial(nothing_of, server, name))
