import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from braid.server.http2 import accepting
from braid.server.http2.accepting import Connections, Place
from braid.server.http2.answer_headers import literal
from tests.server.http2.kinds_of_port import on_each_kind_of_port
from tests.server.http2.test_frames import CALL, MESSAGE, Peer, data, headers, peer_at, serving

__all__ = ["on_each_kind_of_port"]

TOKEN = CALL + literal(b"authorization", b"Bearer right")


def few_places() -> AbstractAsyncContextManager[int]:
    return serving(places=Connections(24, is_token="Bearer right".__eq__))


@asynccontextmanager
async def silent(port: int, count: int) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Connections that never greet, whatever the port speaks."""
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    yield [reader for reader, _ in opened]
    for _, writer in opened:
        writer.transport.abort()


async def ends(reader: asyncio.StreamReader) -> None:
    """Return once the server has closed a connection."""
    with contextlib.suppress(ConnectionError):
        while await reader.read(1 << 16):
            pass


async def asked(peer: Peer, number: int, block: bytes = CALL) -> bytes:
    peer.send(headers(number, block), data(number, MESSAGE))
    return await peer.answer(number)


async def test_a_caller_with_a_token_keeps_its_connection_beside_any_number_of_strangers() -> None:
    async with few_places() as port, peer_at(port) as known:
        assert await asked(known, 1, TOKEN) == MESSAGE
        async with silent(port, 100) as strangers:
            await asyncio.gather(*(ends(each) for each in strangers[:70]))  # the oldest
            assert await asked(known, 3) == MESSAGE


async def test_a_new_caller_finds_a_place_beside_any_number_of_strangers() -> None:
    async with few_places() as port, silent(port, 100), peer_at(port) as late:
        assert await asked(late, 1, TOKEN) == MESSAGE


async def test_those_without_a_call_give_way_before_those_with_one() -> None:
    block = CALL.replace(b"/t/Echo", b"/t/Hold")
    async with few_places() as port, peer_at(port) as waiting, peer_at(port) as idle:
        waiting.send(headers(1, block), data(1, MESSAGE))
        assert await asked(idle, 1) == MESSAGE
        async with silent(port, 40):
            await ends(idle.reader)
            assert await asked(waiting, 3) == MESSAGE


async def test_a_port_that_could_not_accept_takes_connections_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = [0]
    accept = socket.socket.accept

    def failing(self: socket.socket) -> Any:
        tries[0] += 1
        if tries[0] <= 2:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(self)

    monkeypatch.setattr(accepting, "PAUSE_S", 0.1)
    async with few_places() as port:
        monkeypatch.setattr(socket.socket, "accept", failing)
        async with peer_at(port) as peer:
            assert await asked(peer, 1) == MESSAGE
    assert tries[0] < 20  # it waited in between


def entered(connections: Connections, address: str, ended: list[Place]) -> Place:
    place = connections.enter(address)
    place.drop = lambda: ended.append(place)
    return place


def test_the_network_with_most_strangers_loses_the_one_that_is_idle_longest() -> None:
    connections, ended = Connections(8), list[Place]()
    rare = entered(connections, "10.0.0.1", ended)
    many = [entered(connections, "10.0.0.2", ended) for _ in range(5)]
    connections.used(many[0], "")
    for _ in range(4):
        entered(connections, "10.0.0.3", ended)

    assert ended == many[1:3]
    assert rare not in ended


def test_known_callers_leave_places_to_those_who_show_their_tokens_later() -> None:
    connections, ended = Connections(20, is_token=bool), list[Place]()
    places = [entered(connections, f"10.0.0.{n}", ended) for n in range(20)]
    for place in places:
        connections.used(place, "Bearer any")
    entered(connections, "10.0.1.1", ended)

    assert [place.is_known for place in places].count(True) == 4
    assert len(ended) == 1
    assert not ended[0].is_known


def test_of_connections_that_hold_too_much_the_one_with_most_is_closed() -> None:
    connections, ended = Connections(8, most_bytes=100), list[Place]()
    first, second, third = (entered(connections, "10.0.0.1", ended) for _ in range(3))
    for place, size_bytes in ((first, 40), (second, 50), (first, 10), (third, 30), (third, 60)):
        connections.hold(place, size_bytes)

    assert ended == [third]
    connections.leave(second)
    connections.hold(first, 99)
    assert ended == [third]
