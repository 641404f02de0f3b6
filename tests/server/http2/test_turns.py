import asyncio
import os
from contextlib import AsyncExitStack
from time import monotonic

import pytest

from braid.server.http2 import floods
from braid.server.http2.floods import ReadTurns
from tests.server.http2.test_calls import connected, listening


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floods, "TURN_SECONDS", 0.0)  # the first that asks, and nobody else


class Waiting:
    """Reader that notes when it has read."""

    def __init__(self, name: str, of: ReadTurns, has_read: list[str]) -> None:
        self._name, self._turns, self._has_read = name, of, has_read

    def read_on(self) -> None:
        if self._turns.has_time(monotonic()):
            self._has_read.append(self._name)
        else:
            self._turns.wait(self.read_on)


@pytest.mark.usefixtures("_short")
async def test_those_that_wait_read_in_their_order_a_turn_each() -> None:
    made, has_read = ReadTurns(), list[str]()
    assert made.has_time(monotonic())
    assert not made.has_time(monotonic())

    for name in "abc":
        made.wait(Waiting(name, made, has_read).read_on)
    seen = [has_read.copy()]
    while len(has_read) < 3:
        await asyncio.sleep(0)
        if len(has_read) > len(seen[-1]):
            seen.append(has_read.copy())

    assert seen == [[], ["a"], ["a", "b"], ["a", "b", "c"]]


async def test_who_asks_first_in_a_turn_always_reads() -> None:
    made = ReadTurns()
    for now in (0.0, 7.0, 7.0):
        assert made.has_time(now)
        assert made.has_time(now + 0.9 * floods.TURN_SECONDS)
        assert not made.has_time(now + floods.TURN_SECONDS)
        await asyncio.sleep(0)


@pytest.mark.usefixtures("_short")
async def test_calls_of_many_connections_are_answered_in_short_turns() -> None:
    async with listening() as (_, port), AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(connected(port)) for _ in range(6)]
        echoes = [channel.unary_unary("/t/Echo") for channel in channels]
        for sizes in ([10] * 20, [100_000, 3, 2_000_000], [40_000] * 8):
            messages = [os.urandom(size) for size in sizes]
            calls = [(each(message), message) for each in echoes for message in messages]
            for call, message in calls:
                assert await call == message
        gone = echoes[-1](bytes(4 << 20))
        await asyncio.sleep(0)
        gone.cancel()
        assert await echoes[0](b"still there") == b"still there"


@pytest.mark.usefixtures("_short")
async def test_a_connection_that_is_closed_while_it_waits_is_forgotten() -> None:
    async with listening() as (_, port), connected(port) as channel:
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(os.urandom(100_000))
            writer.transport.abort()
        assert await channel.unary_unary("/t/Echo")(b"still there") == b"still there"
