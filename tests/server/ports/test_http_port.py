import asyncio
import contextlib
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families as plain_families
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from braid.server.http2.accepting import Connections
from braid.server.observability.metrics import Metrics
from braid.server.ports.http.connection import HttpLimits
from braid.server.ports.http.requests import read_body, read_form
from braid.server.ports.http.routes import health_routes, metrics_route
from braid.server.ports.http.server import HttpServer

OPENMETRICS = "application/openmetrics-text"
CHUNKED = b"POST /body HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"1000\r\n" + b"x" * 4096 + b"\r\n"


class Port:
    """A running server and what it thinks of itself."""

    def __init__(self, server: HttpServer, port: int, state: dict[str, bool]) -> None:
        self.server, self.port, self.state = server, port, state

    async def get(self, path: str, **headers: str) -> tuple[int, str, bytes]:
        def fetch() -> tuple[int, str, bytes]:
            request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
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


async def large(_: Request) -> Response:
    return Response(bytes(32 << 20))


async def shown(request: Request) -> Response:
    body = await read_form(request) if request.method == "POST" else b""
    return Response(f"{request.method} {request.url.path} {body.decode()}".encode())


async def received(request: Request) -> Response:
    return Response(str(len(await read_body(request, 8192))).encode())


def limited(**limits: float) -> pytest.MarkDecorator:
    """A test on a ``port`` with other limits than the usual ones."""
    return pytest.mark.parametrize("port", [HttpLimits(**limits)], ids=[""], indirect=True)  # type: ignore[arg-type]


@pytest.fixture
async def port(request: pytest.FixtureRequest) -> AsyncIterator[Port]:
    """Of a server with the limits that ``limited`` gives."""
    state = {"ready": True}
    routes = [
        metrics_route(Metrics().registry),
        *health_routes(lambda: [] if state["ready"] else ["a", "models: b"]),
        Route("/broken", broken),
        Route("/large", large),
        Route("/folder/{path:path}", shown, methods=["GET", "POST"]),
        Route("/", shown),
        Route("/v2/kept", shown),
        Route("/v2/kept", received, methods=["POST"]),
        Route("/v2/large", large),
        Route("/body", received, methods=["POST"]),
    ]
    limits: HttpLimits = getattr(request, "param", HttpLimits())
    server = HttpServer(routes, lambda host, _: "evil" not in host, limits)
    yield Port(server, await server.start("127.0.0.1", 0), state)
    await server.stop()


@asynccontextmanager
async def serving(*routes: Route, **options: Any) -> AsyncIterator[Port]:
    """A server of these routes and of probes."""
    server = HttpServer([*routes, *health_routes(list)], **options)
    yield Port(server, await server.start("127.0.0.1", 0), {})
    await server.stop()


class Hanging:
    """A page that never answers."""

    def __init__(self) -> None:
        self.arrived = asyncio.Semaphore(0)
        self.ended = asyncio.Event()
        self.route = Route("/hangs", self._page)

    async def _page(self, _: Request) -> Response:
        self.arrived.release()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        raise AssertionError


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", "text/plain"),
        (OPENMETRICS, OPENMETRICS),
        ("text/plain;version=x", "text/plain"),
        ("text/plain; version=", "text/plain"),
        ("application/openmetrics-text;version=x", "text/plain"),
        ("application/openmetrics-text;version=x,application/openmetrics-text", OPENMETRICS),
        ("application/openmetrics-text; version=99.9", "text/plain"),
        ("application/openmetrics-text;version=0.0.1", "text/plain"),
        ("application/openmetrics-text;q=0", "text/plain"),
        ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6", OPENMETRICS),
        (";;;=,,\xff", "text/plain"),
        ("image/png", "text/plain"),
    ],
)
async def test_metrics_are_valid_whatever_a_scraper_accepts(
    port: Port, accept: str, kind: str
) -> None:
    status, given, body = await port.get("/metrics", Accept=accept)

    assert (status, given.split(";")[0]) == (200, kind)
    parse = openmetrics_families if kind == OPENMETRICS else plain_families
    assert "braid_requests" in {family.name for family in parse(body.decode())}


async def test_health_tells_alive_from_ready(port: Port) -> None:
    assert (await port.get("/readyz"))[0] == 200
    port.state["ready"] = False

    status, _, body = await port.get("/readyz")
    assert (status, body) == (503, b"not ready: a; models: b\n")
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
        (b"GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"421"),
        (b"GET /folder/x HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"421"),
        (b"GET /readyz HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"200"),
        (b"GET / HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /healthz?x=1 HTTP/1.1\r\nA: b\r\n\r\n", b"200"),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * 40_000 + b"\r\n\r\n", b"431"),
        (b"GET /healthz HTTP/1.1\r\nA: " + b"x" * 10_000 + b"\r\n\r\n", b"200"),
        (b"GET /healthz HTTP/1.1\r\n" + b"A: b\r\n" * 10_000 + b"\r\n", b"431"),
        (b"GET /healthz HTTP/1.1\r\n" + b"A: b\r\n" * 120 + b"\r\n", b"200"),
        (b"GET /healthz HTTP/1.1\r\n" + b"A: b\r\n" * 140 + b"\r\n", b"431"),
        (b"GET /healthz HTTP/1.1\r\n" + b"A: b\r\n" * 140, b"431"),
        (b"GET /healthz HTTP/1.1\r\nContent-Length: 8000\r\n\r\n", b"200"),
        (b"GET /healthz HTTP/1.1\r\nContent-Length: 9000\r\n\r\n", b"413"),
        (b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\n\r\n", b"431"),
        (b"POST /body HTTP/1.1\r\nContent-Length: 9000\r\n\r\n", b"413"),
        (b"POST /body HTTP/1.1\r\nContent-Length: 1" + b"0" * 40 + b"\r\n\r\n", b"400"),
        (CHUNKED + b"x\r\n", b"400"),
        (CHUNKED + CHUNK + b"0\r\n\r\n", b"200"),
        (CHUNKED + CHUNK * 3, b"413"),
    ],
)
async def test_each_request_has_its_status(port: Port, request_bytes: bytes, status: bytes) -> None:
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
        (b"Content-Length: -1", b"400"),
        (b"Content-Length: 1e3", b"400"),
        (b"Transfer-Encoding: chunked", b"411"),
    ):
        answer = await port.raw(b"POST /folder/x HTTP/1.1\r\n" + bad + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 " + status), bad
    assert (await port.raw(b"POST / HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 405")


async def test_head_has_a_length_and_no_body(port: Port) -> None:
    answer = await port.raw(b"HEAD /healthz HTTP/1.1\r\n\r\n")

    assert b"content-length: 3\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


async def test_head_is_answered_at_once_where_connections_are_kept(port: Port) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
    for path, status in (("/v2/kept", b"200"), ("/v2/none", b"404"), ("/v2/kept", b"200")):
        writer.write(f"HEAD {path} HTTP/1.1\r\n\r\n".encode())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 120)
        assert head.startswith(b"HTTP/1.1 " + status)
    writer.write(b"HEAD /v2/kept HTTP/1.1\r\n\r\nGET /v2/kept HTTP/1.1\r\n\r\n")
    for length in (14, 13):  # the body names the method
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 120)
        assert b"content-length: %d\r\n" % length in head
    assert await asyncio.wait_for(reader.readexactly(13), 120) == b"GET /v2/kept "
    writer.close()


async def test_of_requests_sent_at_once_the_first_is_answered(port: Port) -> None:
    answer = await port.raw(b"GET /healthz HTTP/1.1\r\n\r\n" * 50)

    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close\r\n" in answer


async def statuses(reader: asyncio.StreamReader, count: int) -> list[tuple[bytes, bytes]]:
    """Status and body of the next answers of a connection that is kept."""
    found = []
    for _ in range(count):
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 120)
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r")[0])
        found.append((head.split(b" ")[1], await reader.readexactly(length)))
    return found


@pytest.mark.parametrize("size", [1, 3, 17, 50, 300, 5000])
async def test_requests_on_one_connection_are_answered_in_order_wherever_they_are_cut(
    port: Port, size: int
) -> None:
    end = b"\r\n\r\n"
    body = end * 20 + b"x" * 700
    chunks = b"%x\r\n" % len(body) + body + b"\r\n0" + end
    sent = b"".join(
        [
            b"GET /v2/kept HTTP/1.1" + end,
            b"POST /v2/kept HTTP/1.1\r\nContent-Length: %d" % len(body) + end + body,
            b"POST /v2/kept HTTP/1.1\r\nTransfer-Encoding: chunked" + end + chunks,
            b"GET /v2/none HTTP/1.1" + end,
        ]
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
    for at in range(0, 3 * len(sent), size):
        writer.write((3 * sent)[at : at + size])
        await asyncio.sleep(0)

    length = str(len(body)).encode()
    once = [(b"200", b"GET /v2/kept "), (b"200", length), (b"200", length)]
    missing = (b"404", b'{"error":"Not Found"}')
    assert await statuses(reader, 12) == 3 * [*once, missing]
    writer.close()


async def test_what_follows_a_request_is_read_once_its_answer_is_taken(port: Port) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port, limit=1 << 16)
    writer.write(b"GET /v2/large HTTP/1.1\r\n\r\n" + b"nonsense\r\n\r\n" * 2)

    assert await statuses(reader, 2) == [(b"200", bytes(32 << 20)), (b"400", b"Bad Request\n")]
    assert await asyncio.wait_for(reader.read(), 120) == b""
    writer.close()


async def test_callers_who_leave_answers_unread_end_before_they_fill_memory() -> None:
    connections = Connections(64, most_bytes=80 << 20)
    async with serving(Route("/v2/large", large), connections=connections) as port:
        held = [await asyncio.open_connection("127.0.0.1", port.port, limit=1) for _ in range(8)]
        for _, writer in held:
            writer.write(b"GET /v2/large HTTP/1.1\r\n\r\n")
        for reader, _ in held:
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(1), 120)  # its answer has begun

        assert (await port.get("/healthz"))[0] == 200
        whole = [reader for reader, _ in held if await is_whole(reader, 32 << 20)]
        assert 1 <= len(whole) <= 3
        for _, writer in held:
            writer.transport.abort()


async def is_whole(reader: asyncio.StreamReader, size: int) -> bool:
    """The rest of an answer comes."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        await asyncio.wait_for(reader.readexactly(size), 120)
        return True
    return False


@limited(request_seconds=600)
async def test_slow_clients_block_nobody(port: Port) -> None:
    slow = [await asyncio.open_connection("127.0.0.1", port.port) for _ in range(20)]
    for _, writer in slow:
        writer.write(b"GET /met")

    assert (await port.get("/metrics"))[0] == 200
    for _, writer in slow:
        writer.close()


@limited(request_seconds=0.05)
async def test_slow_clients_are_dropped(port: Port) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
    writer.write(b"GET /met")

    assert await asyncio.wait_for(closed(reader), 60)
    writer.close()


@limited(max_connections=4, request_seconds=600)
@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\n",
        b"POST /folder/x HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 100,
    ],
    ids=["idle", "head", "body", "headers"],
)
async def test_half_open_requests_give_way_to_whole_ones_and_to_probes(
    port: Port, begun: bytes
) -> None:
    held = [await asyncio.open_connection("127.0.0.1", port.port) for _ in range(12)]
    for _, writer in held:
        writer.write(begun)

    assert (await port.get("/healthz"))[0] == 200
    assert (await port.get("/metrics"))[0] == 200
    for reader, _ in held[:8]:  # the oldest were dropped
        assert await asyncio.wait_for(closed(reader), 60)
    for _, writer in held:
        writer.close()


@limited(max_connections=4, request_seconds=600)
async def test_answers_that_nobody_takes_give_way(port: Port) -> None:
    held = [await asyncio.open_connection("127.0.0.1", port.port) for _ in range(4)]
    for _, writer in held:
        writer.write(b"GET /large HTTP/1.1\r\n\r\n")
    assert await held[-1][0].read(1) == b"H"

    for _ in range(4):
        assert (await port.get("/healthz"))[0] == 200
    for _, writer in held:
        writer.close()


async def test_pages_that_hang_leave_probes_alone() -> None:
    page, limits = Hanging(), HttpLimits(max_connections=4)
    async with serving(page.route, Route("/page", shown), limits=limits) as port:
        stuck = [asyncio.create_task(port.get("/hangs")) for _ in range(2)]
        for _ in stuck:
            await asyncio.wait_for(page.arrived.acquire(), 60)

        assert (await port.get("/healthz"))[0] == 200
        assert (await port.get("/page"))[0] == 503
        await port.server.stop(grace_seconds=0.0)
        await asyncio.gather(*stuck, return_exceptions=True)


async def test_a_page_that_takes_too_long_says_so() -> None:
    page = Hanging()
    async with serving(page.route, limits=HttpLimits(page_seconds=0.0)) as port:
        status, _, body = await port.get("/hangs")

    assert (status, body) == (503, b"this page took too long; try again\n")
    assert page.ended.is_set()


@limited(request_seconds=600)
async def test_stop_does_not_wait_for_idle_clients(port: Port) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
    assert (await port.get("/healthz"))[0] == 200  # accepted after the idle one

    await asyncio.wait_for(port.server.stop(grace_seconds=0.1), 60)

    assert await closed(reader)
    writer.close()


async def closed(reader: asyncio.StreamReader) -> Any:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize(
    "endless",
    [b"0\r\nA: ", b"0\r\n" + b"A: b\r\n" * 100, b"1;"],
    ids=["trailer", "trailers", "chunk extension"],
)
async def test_what_is_no_body_ends_within_the_limit_of_a_head(port: Port, endless: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
    writer.write(CHUNKED + endless)
    more = b"x" * 4096 if not endless.endswith(b"b\r\n") else b"A: b\r\n" * 1000

    with contextlib.suppress(ConnectionError):
        for _ in range(4096):
            writer.write(more)
            await writer.drain()

    assert await asyncio.wait_for(ended(reader), 60)
    writer.close()


@limited(request_seconds=0.3, bytes_per_second=1)
async def test_a_large_body_has_more_time_than_a_small_one(port: Port) -> None:
    head = b"POST /body HTTP/1.1\r\nContent-Length: 2000\r\n\r\n"
    caller = socket.create_connection(("127.0.0.1", port.port))
    caller.sendall(head + b"x" * 1000)  # before the server takes the connection
    reader, writer = await asyncio.open_connection(sock=caller)
    await asyncio.sleep(0.6)  # beyond request_seconds
    writer.write(b"x" * 1000)

    assert (await asyncio.wait_for(reader.read(), 60)).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_a_page_ends_when_its_caller_leaves() -> None:
    page = Hanging()
    async with serving(page.route) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port.port)
        writer.write(b"GET /hangs HTTP/1.1\r\n\r\n")
        await asyncio.wait_for(page.arrived.acquire(), 60)
        writer.close()

        await asyncio.wait_for(page.ended.wait(), 60)


async def ended(reader: asyncio.StreamReader) -> bool:
    """The connection ends, with whatever answer."""
    with contextlib.suppress(ConnectionError):
        await reader.read()
    return True
