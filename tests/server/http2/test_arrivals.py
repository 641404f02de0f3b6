"""Messages on their way in hold what there is room for, and whoever sends on gets through."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from braid.server.http2.arrivals import PATIENCE_S, Arrival, Arrivals
from braid.server.http2.arrivals import SHORT_BYTES as SHORT
from braid.server.http2.messages import WINDOW_BYTES, Incoming, NoRoom
from braid.server.inference.call_memory import UNREAD_S, CallMemory, MemoryLimits
from tests.clock import SetClock, until_true

MIB = 1 << 20
LIMITS = MemoryLimits(64 * MIB, 20 * MIB, 64 * MIB)
LOOK_S = 0.02  # between looks at slow senders
LONG = 8 * MIB  # four of them, or two of a connection, have room


class Connection:
    def __init__(self, arrivals: Arrivals) -> None:
        self.memory = arrivals.memory.connection(str(id(self)))
        self.reserved_bytes = 0
        self.let_in: list[Arrival] = []
        self._arrivals = arrivals

    def allow_more(self, arrival: Arrival) -> None:
        self.let_in.append(arrival)

    def begin(self, size: int = LONG, sent: int = WINDOW_BYTES) -> Arrival:
        """Begin a message, and send so much of it."""
        arrival = Arrival(self, Incoming(64 * MIB, "identity"), 1)
        self.send(arrival, b"\0" + size.to_bytes(4, "big") + bytes(sent - 5))
        return arrival

    def send(self, arrival: Arrival, data: bytes) -> None:
        self._arrivals.count(arrival, len(data))
        arrival.incoming.feed(memoryview(data))
        self._arrivals.settle(arrival)
        if arrival.incoming.body_bytes > WINDOW_BYTES:
            self._arrivals.admit(arrival)

    async def finish(self, arrival: Arrival) -> None:
        """Send the rest, which its handler takes."""
        while left := min(WINDOW_BYTES, arrival.incoming.missing_bytes):
            self.send(arrival, bytes(left))
        assert await arrival.incoming.arrived()
        size = await arrival.incoming.measure()
        assert size == len(await arrival.incoming.take())
        self._arrivals.taken(arrival, size)
        self._arrivals.free(arrival)


@pytest.fixture
def clock() -> SetClock:
    """Time that passes when a test says so; looks at slow senders are the loop's."""
    return SetClock(1000.0)


@pytest.fixture
async def arrivals(clock: SetClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Arrivals]:
    monkeypatch.setattr("braid.server.http2.arrivals.LOOK_S", LOOK_S)
    shared = Arrivals(CallMemory(LIMITS), clock)
    yield shared
    assert shared.held_bytes <= LIMITS.all_bytes


def failed(arrival: Arrival) -> bool:
    return isinstance(arrival.incoming.failure, NoRoom)


async def test_half_messages_of_many_connections_hold_the_limit_at_most(arrivals: Arrivals) -> None:
    """Each connection had room for one however many there were: 40 of 60 MiB held 2.4 GB."""
    begun = [Connection(arrivals).begin() for _ in range(500)]

    assert sum(arrival.reserved > 0 for arrival in begun) == 4
    assert sum(arrival.incoming.held_bytes for arrival in begun) <= LIMITS.all_bytes
    assert sum(map(failed, begun)) >= 400


async def test_a_message_may_begin_before_the_last_one_is_handed_over(arrivals: Arrivals) -> None:
    """As while that one is decompressed: the room that was kept for it stayed taken for good."""
    connection = Connection(arrivals)
    arrival = connection.begin()
    while left := min(WINDOW_BYTES, arrival.incoming.missing_bytes):
        connection.send(arrival, bytes(left))
    await arrival.incoming.measure()
    size = len(await arrival.incoming.take())
    connection.send(arrival, b"\0" + LONG.to_bytes(4, "big") + bytes(WINDOW_BYTES - 5))

    arrivals.taken(arrival, size)
    arrivals.free(arrival)

    assert arrivals.admit(arrival)
    arrivals.leave(arrival)
    assert connection.reserved_bytes == 0


@pytest.mark.parametrize("sent", [100, 60_000, WINDOW_BYTES])
async def test_short_messages_count_too(arrivals: Arrivals, sent: int) -> None:
    begun = [Connection(arrivals).begin(WINDOW_BYTES, sent) for _ in range(2000)]

    held = sum(arrival.incoming.held_bytes for arrival in begun)
    assert held <= LIMITS.all_bytes
    assert any(map(failed, begun)) == (2000 * sent > LIMITS.all_bytes)


async def test_who_sends_on_gets_through_those_who_stand_still(
    arrivals: Arrivals, clock: SetClock
) -> None:
    standing = [Connection(arrivals).begin() for _ in range(12)]
    connection = Connection(arrivals)
    sender = connection.begin()
    assert not sender.reserved

    while not sender.reserved:  # those who were let in before it give way, four at a time
        clock.now += PATIENCE_S + 0.1
        await asyncio.sleep(2 * LOOK_S)

    assert all(map(failed, standing[:4]))
    await connection.finish(sender)


async def test_nobody_gives_way_while_nobody_waits(arrivals: Arrivals, clock: SetClock) -> None:
    standing = [Connection(arrivals).begin() for _ in range(4)]
    clock.now += 3600
    await asyncio.sleep(3 * LOOK_S)
    assert not any(map(failed, standing))


async def test_a_slow_sender_gives_way_and_a_quick_one_does_not(
    arrivals: Arrivals, clock: SetClock
) -> None:
    connections = [Connection(arrivals) for _ in range(4)]
    quick, *slow = (connection.begin() for connection in connections)
    waiting = Connection(arrivals).begin()
    for _ in range(4):
        clock.now += 1.0
        connections[0].send(quick, bytes(2 * MIB))
        for connection, arrival in zip(connections[1:], slow, strict=True):
            connection.send(arrival, bytes(100))

    await until_true(lambda: waiting.reserved > 0)

    assert sum(map(failed, slow)) == 1
    assert not failed(quick)
    await connections[0].finish(quick)


async def test_a_connection_waits_for_its_own_messages_and_keeps_nobody(
    arrivals: Arrivals, clock: SetClock
) -> None:
    busy, other = Connection(arrivals), Connection(arrivals)
    first, second, third = (busy.begin() for _ in range(3))
    assert [bool(each.reserved) for each in (first, second, third)] == [True, True, False]
    assert third not in busy.let_in
    assert other.begin().reserved  # though one waits before it

    await busy.finish(first)
    assert third in busy.let_in
    assert second.reserved


async def test_a_whole_message_that_is_not_taken_gives_way_in_the_end(
    arrivals: Arrivals, clock: SetClock
) -> None:
    """Its handler waits for a caller that takes no answers."""
    connections = [Connection(arrivals) for _ in range(4)]
    whole = [connection.begin() for connection in connections]
    for connection, arrival in zip(connections, whole, strict=True):
        connection.send(arrival, bytes(arrival.incoming.missing_bytes))
    waiting = Connection(arrivals).begin()
    clock.now += UNREAD_S
    await asyncio.sleep(2 * LOOK_S)
    assert not any(map(failed, whole))

    clock.now += PATIENCE_S + 0.1
    await until_true(lambda: waiting.reserved > 0)


async def test_a_message_beyond_all_limits_is_let_in_alone(clock: SetClock) -> None:
    arrivals = Arrivals(CallMemory(MemoryLimits(MIB, MIB, MIB)), clock)
    first, second = Connection(arrivals), Connection(arrivals)
    one, two = first.begin(60 * MIB), second.begin(60 * MIB)
    assert one.reserved
    assert not two.reserved
    short = [Connection(arrivals).begin(WINDOW_BYTES, 600_000) for _ in range(10)]
    assert not any(map(failed, short))
    assert arrivals.held_bytes <= 60 * MIB + SHORT

    await first.finish(one)

    assert second.let_in == [two]
    await second.finish(two)


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_comes_the_sums_are_right_and_all_who_send_on_end(
    arrivals: Arrivals, clock: SetClock, seed: int
) -> None:
    draw = random.Random(seed)
    connections = [Connection(arrivals) for _ in range(5)]
    under_way: list[tuple[Connection, Arrival]] = []
    for _ in range(300):
        clock.now += draw.choice((0.0, 0.001, 0.5))
        if draw.random() < 0.3 or not under_way:
            connection = draw.choice(connections)
            size = draw.choice((10, 70_000, 2 * MIB, LONG, 30 * MIB))
            under_way.append((connection, connection.begin(size, max(6, min(size, WINDOW_BYTES)))))
            continue
        connection, arrival = draw.choice(under_way)
        if failed(arrival) or draw.random() < 0.1:
            arrival.incoming.drop()
            arrivals.leave(arrival)
            under_way.remove((connection, arrival))
        elif arrival.reserved or arrival.incoming.body_bytes <= WINDOW_BYTES:
            await connection.finish(arrival)
            arrivals.leave(arrival)
            under_way.remove((connection, arrival))
        held = [arrival.held_bytes for _, arrival in under_way]
        assert sum(held) == arrivals.held_bytes <= LIMITS.all_bytes
        for peer in connections:
            mine = [arrival.reserved for owner, arrival in under_way if owner is peer]
            assert peer.reserved_bytes == sum(mine)
