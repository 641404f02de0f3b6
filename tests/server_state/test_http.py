"""The HTTP port, spoken to over real sockets."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import pytest

import server.http
from server.http import HttpServer, Request, Response, health_routes, metrics_route
from server.metrics import Metrics


class Port:
    """A running server and what it thinks of itself."""

    def __init__(self, server: HttpServer, port: int, state: dict[str, bool]) -> None:
        self.server, self.port, self.state = server, port, state

    async def get(self, path: str, **headers: str) -> tuple[int, str, bytes]:
        def fetch() -> tuple[int, str, bytes]:
            request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    return answer.status, answer.headers["content-type"], answer.read()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.headers["content-type"], error.read()

        return await asyncio.to_thread(fetch)

    async def raw(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer


async def broken(_: Request) -> Response:
    raise RuntimeError("secret")


async def shown(request: Request) -> Response:
    return Response(f"{request.method} {request.path} {request.body.decode()}".encode())


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    state = {"ready": True}
    routes = {"/metrics": metrics_route(Metrics().registry), "/broken": broken}
    folders = {"/folder/": shown, "/": shown}
    server = HttpServer({**routes, **folders, **health_routes(lambda: state["ready"])})
    yield Port(server, await server.start("127.0.0.1", 0), state)
    await server.stop()


async def test_metrics_are_exposed_in_both_formats(port: Port) -> None:
    status, kind, body = await port.get("/metrics")
    assert (status, kind.split(";")[0]) == (200, "text/plain")
    assert b"# TYPE braid_requests_total counter" in body

    status, kind, body = await port.get("/metrics", Accept="application/openmetrics-text")
    assert (status, kind.split(";")[0]) == (200, "application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


async def test_health_tells_alive_from_ready(port: Port) -> None:
    assert (await port.get("/readyz"))[0] == 200
    port.state["ready"] = False

    assert (await port.get("/readyz"))[0] == 503
    assert (await port.get("/healthz"))[0] == 200


async def test_a_page_that_fails_tells_nothing(port: Port) -> None:
    status, _, body = await port.get("/broken")

    assert (status, body) == (500, b"Internal Server Error\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /none HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET http://[bad HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nno colon\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", b"400"),
        (b"GET /healthz?x=1 HTTP/1.1\r\nA: b\r\n\r\n", b"200"),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * 40_000 + b"\r\n\r\n", b"431"),
    ],
)
async def test_each_bad_request_has_its_status(
    port: Port, request_bytes: bytes, status: bytes
) -> None:
    assert (await port.raw(request_bytes)).startswith(b"HTTP/1.1 " + status)


async def test_a_folder_answers_what_is_below_it_and_takes_forms_and_the_root_is_none(
    port: Port,
) -> None:
    assert (await port.get("/folder/a/b"))[2] == b"GET /folder/a/b "
    assert (await port.get("/"))[2] == b"GET / "
    assert (await port.get("/a"))[0] == 404
    posted = await port.raw(b"POST /folder/x HTTP/1.1\r\nContent-Length: 3\r\n\r\na=b")
    assert posted.endswith(b"POST /folder/x a=b")
    for bad, status in (
        (b"Content-Length: 9000", b"413"),
        (b"Content-Length: -1", b"411"),
        (b"Content-Length: 1e3", b"411"),
        (b"Transfer-Encoding: chunked", b"411"),
    ):
        answer = await port.raw(b"POST /folder/x HTTP/1.1\r\n" + bad + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 " + status), bad
    assert (await port.raw(b"POST / HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 405")


async def test_head_has_a_length_and_no_body(port: Port) -> None:
    answer = await port.raw(b"HEAD /healthz HTTP/1.1\r\n\r\n")

    assert b"Content-Length: 3\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


async def test_slow_clients_are_dropped_and_block_nobody(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.http, "REQUEST_SECONDS", 0.3)
    slow = [await asyncio.open_connection("127.0.0.1", port.port) for _ in range(20)]
    for _, writer in slow:
        writer.write(b"GET /met")

    assert (await port.get("/metrics"))[0] == 200
    for reader, writer in slow:
        assert await asyncio.wait_for(closed(reader), 5)
        writer.close()


async def test_too_many_connections_are_refused_until_some_end(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.http, "MAX_CONNECTIONS", 2)
    held = [await asyncio.open_connection("127.0.0.1", port.port) for _ in range(2)]
    await asyncio.sleep(0.1)

    reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
    assert await asyncio.wait_for(closed(reader), 5)
    for each in [*(w for _, w in held), writer]:
        each.close()
    await asyncio.sleep(0.1)

    assert (await port.get("/healthz"))[0] == 200


async def test_stop_does_not_wait_for_idle_clients(port: Port) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
    await asyncio.sleep(0.05)

    await asyncio.wait_for(port.server.stop(grace_seconds=0.1), 2)

    assert await closed(reader)
    writer.close()


async def closed(reader: asyncio.StreamReader) -> Any:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True
