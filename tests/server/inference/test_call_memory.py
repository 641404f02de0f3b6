"""Requests that do not fit into their caller's memory wait; nothing that is held is forgotten."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from braid.core.errors import DeadlineExceeded
from braid.server.inference import call_memory
from braid.server.inference.call_memory import (
    Account,
    Answer,
    CallMemory,
    Charge,
    MemoryLimits,
    StreamMemory,
)
from braid.server.servicers.streams import answers
from tests.clock import until_true


def memory(stream: int = 10, connection: int = 20, everything: int = 30) -> CallMemory:
    return CallMemory(MemoryLimits(stream, connection, everything))


async def taken(account: Account, size: int | None) -> Charge:
    """What fits at once."""
    async with asyncio.timeout(0):
        return await account.take(size, None)


async def waiting(entering: Awaitable[Charge]) -> asyncio.Future[Charge]:
    """A request that does not fit now."""
    task = asyncio.ensure_future(entering)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_what_does_not_fit_waits_in_order() -> None:
    connection = memory().connection("a")
    first = await taken(connection, 15)
    second = await waiting(connection.take(10, None))
    third = await waiting(connection.take(1, None))  # would fit, and came later

    first.release()

    await asyncio.gather(second, third)
    assert connection.held_bytes == 11


async def test_all_hold_the_limit_and_one_request_at_most() -> None:
    """A connection that held nothing was always let in: many held many times the limit."""
    everything = memory()
    too_large = await taken(everything.connection("a"), 40)
    waits = [await waiting(everything.connection(peer).take(20, None)) for peer in "bcd"]

    too_large.release()
    first = await waits[0]

    assert everything.held_bytes == 20
    for charge in (first, waits[1], waits[2]):
        (await charge if isinstance(charge, asyncio.Future) else charge).release()
    assert everything.held_bytes == 0


async def test_callers_with_less_under_way_go_first() -> None:
    everything = CallMemory(MemoryLimits(10, 20, 30), lambda peer: peer[0])
    held = [await taken(everything.connection(peer), 10) for peer in ("a1", "a2", "b1")]
    busy = await waiting(everything.connection("a3").take(10, None))
    other = await waiting(everything.connection("c1").take(10, None))

    held[0].release()

    assert await other
    assert not busy.done()
    held[1].release()
    assert await busy


async def test_who_takes_no_answers_is_ended_while_others_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call_memory, "UNREAD_S", 0.0)
    monkeypatch.setattr(call_memory, "LOOK_S", 0.02)
    everything, call, ended = memory(), Call(), list[str]()
    call.cancel = lambda: ended.append("the slow one")  # type: ignore[attr-defined]
    slow = await taken(everything.connection("a"), 20)
    slow.answered(20)
    slow.release_when_done(call)
    await asyncio.sleep(0.05)
    assert not ended

    patient = asyncio.ensure_future(everything.connection("b").take(20, None))
    await until_true(lambda: ended)
    call.callbacks.pop()(call)

    assert await patient
    assert everything.held_bytes == 20


async def test_strangers_hold_a_small_part_at_once_and_others_more() -> None:
    everything = CallMemory(MemoryLimits(1600, 1600, 1600), lambda peer: peer[0])
    first, second = everything.connection("a1"), everything.connection("a2")
    assert first.hold(60)
    assert not second.hold(60)  # the same address
    assert everything.connection("b").hold(100)
    assert not everything.connection("c").hold(60)  # all strangers have 200

    second.know("token")
    assert second.hold(600)
    assert everything.held_bytes == 760
    first.know("token")
    first.release(60)
    second.release(600)
    assert everything.held_bytes == 100


async def test_a_stranger_waits_for_time_that_others_of_its_address_have_used() -> None:
    everything = CallMemory(MemoryLimits(1, 1, 1), lambda peer: peer[0])
    assert everything.connection("a1").caller.spend(0.01) == 0.0

    assert everything.connection("a2").caller.spend(1.0) > 1.0
    assert everything.connection("a3").caller.spend(0.0) > 1.0
    assert everything.connection("b1").caller.spend(0.01) == 0.0


async def test_the_same_peer_has_one_account() -> None:
    everything = memory()
    stream = everything.stream("a")
    assert await taken(stream, 10)

    await waiting(everything.connection("a").take(11, None))


async def test_an_answer_replaces_what_was_expected_and_counts_as_unread() -> None:
    everything = memory()
    charge = await taken(everything.stream("a"), None)
    assert (everything.held_bytes, everything.unread_bytes) == (10, 0)

    charge.answered(4)
    assert (everything.held_bytes, everything.unread_bytes) == (4, 4)

    charge.release()
    charge.release()
    assert (everything.held_bytes, everything.unread_bytes) == (0, 0)


class Call:
    """A call that is ended by the test."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[Any], None]] = []

    def add_done_callback(self, callback: Callable[[Any], None], /) -> None:
        self.callbacks.append(callback)


async def test_a_call_keeps_the_charge_of_its_answer_but_not_the_reply() -> None:
    everything, call = memory(), Call()
    charge = await taken(everything.connection("a"), 10)
    charge.answered(4)
    reply = bytes(bytearray(4))
    references = sys.getrefcount(reply)

    charge.release_when_done(call)
    del charge

    assert sys.getrefcount(reply) == references
    assert everything.held_bytes == 4
    call.callbacks.pop()(call)
    assert everything.held_bytes == 0


async def test_who_leaves_the_queue_lets_the_next_in() -> None:
    connection = memory().connection("a")
    assert await taken(connection, 15)
    first = await waiting(connection.take(10, None))
    second = await waiting(connection.take(5, None))

    first.cancel()

    assert await second
    assert connection.held_bytes == 20


async def test_leaving_in_the_moment_of_being_let_in_holds_nothing() -> None:
    everything = memory()
    stream = everything.stream("a")
    held = await taken(stream, 10)
    second = await waiting(stream.take(10, None))

    held.release()
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)

    assert (stream.held_bytes, everything.held_bytes) == (0, 0)


async def test_a_deadline_ends_the_waiting() -> None:
    connection = memory().connection("a")
    assert await taken(connection, 15)

    with pytest.raises(DeadlineExceeded, match="waited to be read"):
        await connection.take(10, asyncio.get_running_loop().time())

    assert connection.held_bytes == 15
    assert await taken(connection, 5)


async def test_a_stream_that_ends_releases_what_its_requests_hold() -> None:
    everything = memory()
    stream = everything.stream("a")
    charge = await taken(stream, 6)
    charge.answered(7)
    waits = await waiting(stream.take(10, None))

    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)
    stream.close()
    charge.release()

    assert (everything.held_bytes, everything.unread_bytes) == (0, 0)


class Requests:
    """A stream of requests that never ends, and how many of them were read."""

    def __init__(self) -> None:
        self.read = 0

    def __aiter__(self) -> Requests:
        return self

    async def __anext__(self) -> int:
        self.read += 1
        return self.read


@pytest.mark.parametrize("in_order", [False, True])
async def test_a_stream_is_not_read_while_its_answers_are_not(in_order: bool) -> None:
    everything = memory(stream=10)
    requests, stream = Requests(), everything.stream("a")

    async def answer(request: int) -> Answer:
        charge = await stream.take(3, None)
        charge.answered(4)
        return Answer(b"%4d" % request, charge)

    replies = answers(requests, answer, stream, in_order=in_order)
    for taken_before in range(3):
        assert await anext(replies) == b"%4d" % (taken_before + 1)
        for _ in range(100):
            await asyncio.sleep(0)
        assert requests.read == taken_before + 3  # two hold 8 bytes, the third waits for room
        assert everything.held_bytes == 8

    await replies.aclose()
    assert (everything.held_bytes, everything.unread_bytes) == (0, 0)


async def test_a_stream_that_waits_for_others_of_its_connection_is_not_read() -> None:
    everything = memory(stream=20)
    assert await taken(everything.connection("a"), 15)
    requests, stream = Requests(), everything.stream("a")

    replies = answers(requests, lambda _: charged(stream), stream, in_order=False)
    first = asyncio.ensure_future(anext(replies))
    for _ in range(100):
        await asyncio.sleep(0)

    assert requests.read == 1
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def charged(stream: StreamMemory) -> Answer:
    return Answer(b"", await stream.take(10, None))
