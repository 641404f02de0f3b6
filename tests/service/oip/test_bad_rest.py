import json
import socket

from tests.clock import until
from tests.service.oip.rest import inputs
from tests.service.server_process import ServerProcess

INFER = "/v2/models/fp32/infer"


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
