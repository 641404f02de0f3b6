import asyncio
import gzip
import os
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from braid.core.errors import ResourceExhausted
from braid.server.ports.http.connection import HttpLimits
from braid.server.ports.http.requests import BodyRoom, read_body
from braid.server.ports.http.server import HttpServer
from braid.server.servicers.rest.answers import INFLATED_BYTES, decoded

MIB = 1 << 20
ROOM_BYTES = 8 * MIB
Caller = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Port:
    """A port whose route reads a body, says so, and answers on command."""

    def __init__(self) -> None:
        self.number = 0
        self.begun = asyncio.Semaphore(0)
        self.read = asyncio.Semaphore(0)
        self.may_answer = asyncio.Event()
        self.time = 0.0
        self._room = BodyRoom(ROOM_BYTES, lambda: self.time)

    async def take(self, request: Request) -> Response:
        try:
            with self._room.reading(request) as body:
                self.begun.release()
                size = len(await read_body(request, ROOM_BYTES, body.hold))
                body.is_whole = True
                self.read.release()
                if "waits" in request.headers:
                    await self.may_answer.wait()
        except ResourceExhausted:
            return Response(status_code=HTTPStatus.TOO_MANY_REQUESTS)
        return Response(str(size).encode())

    async def begin(self, address: str, size: int, sent: int, *more: str) -> Caller:
        """Send a part of a body from an address of the loopback network."""
        caller = await asyncio.open_connection("127.0.0.1", self.number, local_addr=(address, 0))
        head = ["POST /v2/body HTTP/1.1", f"Content-Length: {size}", *more, "", ""]
        caller[1].write("\r\n".join(head).encode() + bytes(sent))
        await caller[1].drain()
        return caller


async def answer(caller: Caller) -> bytes:
    head = await asyncio.wait_for(caller[0].readuntil(b"\r\n\r\n"), 120)
    caller[1].close()
    return head.split(b" ")[1]


@asynccontextmanager
async def opened() -> AsyncIterator[Port]:
    port = Port()
    routes = [Route("/v2/body", port.take, methods=["POST"])]
    server = HttpServer(routes, limits=HttpLimits(request_seconds=600))
    port.number = await server.start("127.0.0.1", 0)
    try:
        yield port
    finally:
        port.may_answer.set()
        await server.stop()


async def test_the_caller_that_holds_most_gives_way_however_fast_it_sends() -> None:
    async with opened() as port:
        greedy = [await port.begin("127.0.0.2", 4 * MIB, 3 * MIB) for _ in range(2)]
        modest = [await port.begin("127.0.0.3", 3 * MIB, 3 * MIB) for _ in range(1)]
        modest += [await port.begin("127.0.0.4", 3 * MIB, 3 * MIB) for _ in range(1)]

        assert [await answer(each) for each in modest] == [b"200"] * 2
        done, _ = await asyncio.wait(
            [asyncio.create_task(answer(each)) for each in greedy],
            return_when=asyncio.FIRST_COMPLETED,
        )
        assert {each.result() for each in done} == {b"429"}
        for _, writer in greedy:
            writer.transport.abort()


async def test_of_one_caller_the_body_that_stands_still_gives_way() -> None:
    async with opened() as port:
        still = await port.begin("127.0.0.2", 6 * MIB, 5 * MIB)
        await asyncio.wait_for(port.begun.acquire(), 120)
        port.time = 5.0
        whole = await port.begin("127.0.0.2", 5 * MIB, 5 * MIB)

        assert await answer(whole) == b"200"
        assert await answer(still) == b"429"


async def test_long_bodies_that_wait_leave_room_to_short_ones_and_are_not_given_up() -> None:
    async with opened() as port:
        long = await port.begin("127.0.0.2", 6 * MIB, 6 * MIB, "waits: yes")
        await asyncio.wait_for(port.read.acquire(), 120)

        for _ in range(3):
            assert await answer(await port.begin("127.0.0.2", MIB, MIB)) == b"200"
        port.may_answer.set()
        assert await answer(long) == b"200"


@pytest.mark.parametrize(
    "size", [0, 1, 1000, INFLATED_BYTES, 2 * INFLATED_BYTES, 3 * INFLATED_BYTES + 1]
)
@pytest.mark.parametrize("is_dense", [False, True])
async def test_bodies_of_any_size_are_inflated_and_counted(size: int, is_dense: bool) -> None:
    content = os.urandom(size) if is_dense else bytes(size)
    held: list[int] = []
    for encoding, body in (("gzip", gzip.compress(content)), ("deflate", zlib.compress(content))):
        assert await decoded(body, encoding, size, held.append) == content
        assert held[-1] == size
        assert max(held) == size + len(body)
        held.clear()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (gzip.compress(bytes(8 * INFLATED_BYTES)), 413),
        (gzip.compress(b"cut off")[:-1], 400),
        (gzip.compress(b"more follows") + b"x" * 3 * INFLATED_BYTES, 400),
        (b"", 400),
        (b"nothing of the kind", 400),
    ],
    ids=["bomb", "short", "long", "empty", "no gzip"],
)
async def test_a_body_that_is_not_one_stream_within_the_limit_is_refused(
    body: bytes, status: int
) -> None:
    held: list[int] = []
    with pytest.raises(HTTPException) as raised:
        await decoded(body, "gzip", 2 * INFLATED_BYTES, held.append)

    assert raised.value.status_code == status
    assert max(held, default=0) <= 3 * INFLATED_BYTES + len(body)
