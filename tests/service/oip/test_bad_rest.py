"""Bad requests over HTTP: the right status, an error in JSON, and nothing held."""

from __future__ import annotations

import gzip
import json
import socket
from typing import Any

import pytest

from tests.clock import until
from tests.service.oip.rest import HEAD_LENGTH, call, inputs, tensor
from tests.service.server_process import ServerProcess

INFER = "/v2/models/fp32/infer"
ZEROS = b"\0" * 12
SIZED = {"parameters": {"binary_data_size": 12}}


def binary(size: object = 12) -> dict[str, Any]:
    found = tensor(parameters={"binary_data_size": size})
    del found["data"]
    return found


@pytest.mark.parametrize(
    ("body", "tail", "words"),
    [
        (b"", b"", "'inputs' must be a list"),
        (b"{", b"", "not JSON"),
        (b"[]", b"", "no object"),
        (b"\xff\xfe", b"", "not JSON"),
        (b"[" * 100_000, b"", "not JSON"),
        ({}, b"", "'inputs' must be a list"),
        ({"inputs": 1}, b"", "'inputs' must be a list"),
        ({"inputs": [1]}, b"", "'inputs' must be a list"),
        (inputs(id=1), b"", "'id' of the request must be a string"),
        (inputs(id="x" * 129), b"", "longer than 128"),
        (inputs(id="\ud800"), b"", "surrogate"),
        (inputs(parameters=[]), b"", "no object"),
        (inputs(parameters={"timeout": "x"}), b"", "must be an integer"),
        (inputs(parameters={"priority": 11}), b"", "between 0 and 10"),
        (inputs(parameters={"headers": "x"}), b"", "reserved"),
        (inputs(parameters={"binary_data_output": 1}), b"", "true or false"),
        (inputs(parameters={"x": [1]}), b"", "not offered"),
        (inputs(outputs=[{"name": "none"}]), b"", "no output 'none'"),
        (inputs(outputs=[{"name": "y"}, {"name": "y"}]), b"", "requested twice"),
        (inputs(outputs=[{"name": "y", "parameters": {"odd": 1}}]), b"", "unknown parameter"),
        (inputs(tensor(name="none")), b"", "no input 'none'"),
        (inputs(tensor(), tensor()), b"", "given twice"),
        (inputs(tensor(datatype="FP99")), b"", "unknown datatype"),
        (inputs(tensor(datatype="FP64")), b"", "has dtype 'FP64'"),
        (inputs(tensor(datatype="BYTES", data=["a"])), b"", "has dtype 'BYTES'"),
        (inputs(tensor(datatype="BYTES", data=[1])), b"", "no string"),
        (inputs(tensor(shape=[1])), b"", "rank 1"),
        (inputs(tensor(shape=[0, 3])), b"", "extent 0"),
        (inputs(tensor(shape="13")), b"", "no list of integers"),
        (inputs(tensor(shape=[1, 3.0])), b"", "no list of integers"),
        (inputs(tensor(shape=[2**63, 3])), b"", "no list of integers"),
        (inputs(tensor(data=[1, 2])), b"", "8 bytes of data"),
        (inputs(tensor(data=[[1, 2], [3]])), b"", "nested unevenly"),
        (inputs(tensor(data=[1, 2, "3"])), b"", "no FP32"),
        (inputs(tensor(data=[1, 2, None])), b"", "no FP32"),
        (inputs(tensor(data=[True, False, True])), b"", "no FP32"),
        (inputs(tensor(data=[1e300, 2, 3])), b"", "outside the range"),
        (inputs(tensor(data=7)), b"", "no list of elements"),
        (inputs(binary()), ZEROS[1:], "11 bytes are left"),
        (inputs(binary()), ZEROS + b"x", "belong to no input"),
        (inputs(binary(13)), ZEROS + b"x", "13 bytes of data"),
        (inputs(binary(-1)), ZEROS, "binary_data_size"),
        (inputs(binary("12")), ZEROS, "binary_data_size"),
        (inputs(tensor(**SIZED)), ZEROS, "choose one"),
        (inputs(), ZEROS, "belong to no input"),
    ],
)
def test_each_bad_body_is_refused_by_name(
    oip_server: ServerProcess, body: Any, tail: bytes, words: str
) -> None:
    answer = call(oip_server, INFER, body, tail)

    assert answer.status == 400, answer.body
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["braid-request-id"]
    assert words in answer.json["error"]


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/v2/models/none/infer", inputs(), {}, 404),
        ("/v2/models/fp32/versions/9/infer", inputs(), {}, 404),
        ("/v2/models/fp32/versions/x/infer", inputs(), {}, 404),
        ("/v2/models/none", None, {}, 404),
        ("/v2/nothing", None, {}, 404),
        ("/v2/models/fp32/infer", None, {}, 405),
        ("/v2/repository/index", None, {}, 405),
        ("/v2/repository/models/x/load", {"parameters": {"odd": "1"}}, {}, 400),
        ("/v2/repository/models/x/load", {"parameters": {"file:1/m": "?"}}, {}, 400),
        ("/v2/repository/models/fp32/unload", {"parameters": {"odd": True}}, {}, 400),
        ("/v2/cudasharedmemory/status", None, {}, 501),
        (INFER, inputs(parameters={"sequence_id": 1}), {}, 501),
        (INFER, inputs(parameters={"timeout": 1}), {}, 504),
        (INFER, inputs(), {"Content_Encoding": "br"}, 415),
        (INFER, inputs(), {"Content_Encoding": "gzip"}, 400),
        (INFER, inputs(), {HEAD_LENGTH: "x"}, 400),
        (INFER, inputs(), {HEAD_LENGTH: "99999"}, 400),
        (INFER, inputs(), {"Origin": "https://evil.example"}, 403),
        (INFER, inputs(), {"Sec_Fetch_Site": "cross-site"}, 403),
        (INFER, inputs(), {"Host": "evil.example"}, 421),
        ("/v2/health/live", None, {"Host": "evil.example"}, 200),
        (INFER, inputs(), {"X_Long": "x" * 10_000}, 200),
        (INFER, inputs(), {"X_Long": "x" * 20_000}, 431),
    ],
)
def test_each_mistake_has_its_status(
    oip_server: ServerProcess, path: str, body: Any, headers: dict[str, Any], status: int
) -> None:
    answer = call(oip_server, path, body, **headers)

    assert answer.status == status, answer.body
    if status not in (200, 431):
        assert set(answer.json) == {"error"}


def test_bombs_are_refused(oip_server: ServerProcess) -> None:
    bomb = gzip.compress(b" " * (200 << 20), 1)
    assert len(bomb) < 1 << 20

    assert call(oip_server, INFER, bomb, Content_Encoding="gzip").status == 413
    assert call(oip_server, INFER, bomb[:-9], Content_Encoding="gzip").status in (400, 413)
    whole = gzip.compress(json.dumps(inputs()).encode())
    assert call(oip_server, INFER, whole, Content_Encoding="gzip").status == 200
    assert call(oip_server, INFER, whole + whole, Content_Encoding="gzip").status == 400


def raw(server: ServerProcess, *parts: bytes) -> socket.socket:
    host, _, port = server.http_address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=120)
    for part in parts:
        connection.sendall(part)
    return connection


def status_of(connection: socket.socket) -> bytes:
    with connection, connection.makefile("rb") as answer:
        return answer.readline().split(b" ")[1]


POST = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\n".encode()


def test_a_chunked_body_ends_at_the_limit(oip_server: ServerProcess) -> None:
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"

    sent = raw(oip_server, POST + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 66)
    assert status_of(sent) == b"413"
    small = json.dumps(inputs()).encode()
    sent = raw(
        oip_server,
        POST + b"Transfer-Encoding: chunked\r\n\r\n",
        *(b"%x\r\n%s\r\n" % (1, small[at : at + 1]) for at in range(len(small))),
        b"0\r\n\r\n",
    )
    assert status_of(sent) == b"200"


def test_a_body_beyond_the_limit_is_refused_by_its_head(oip_server: ServerProcess) -> None:
    sent = raw(oip_server, POST + b"Content-Length: 99999999999\r\n\r\n")
    assert status_of(sent) == b"413"


def test_slow_senders_are_dropped_and_hold_nobody_up(oip_server: ServerProcess) -> None:
    slow = [raw(oip_server, POST + b"Content-Length: 100\r\n\r\n{") for _ in range(50)]

    assert call(oip_server, INFER, inputs()).status == 200
    for connection in slow:
        with connection:
            assert connection.recv(1) == b""


def test_a_request_whose_caller_leaves_is_cancelled(oip_server: ServerProcess) -> None:
    def cancelled() -> float:
        return oip_server.metric("braid_requests_total", outcome="CANCELLED")

    before = cancelled()
    body = json.dumps(inputs()).encode()
    head = POST + b"Content-Length: %d\r\n\r\n" % len(body)

    def attempt() -> bool:
        for _ in range(20):  # some are answered before they can be cancelled
            raw(oip_server, head + body).close()
        return cancelled() > before

    assert until(attempt, 60, lambda: "no request was cancelled")
