"""Memory of the calls under way: requests being computed, and answers that are not taken yet.

    infer ──take──> StreamMemory ──> ConnectionMemory ──> CallMemory      a limit in bytes each
      └── Charge: request and expected answer ──answered──> the answer ──release──> nothing

A request that does not fit waits before it is computed, first come, first served; while one of a
stream waits, nothing more of that stream is read. A stream or connection that holds nothing is
always let in, so that callers that take their answers get on whatever others do: all calls
together hold at most the limit and one request for each connection.

An answer is taken when gRPC has accepted its last byte, which waits for the caller's flow control.
gRPC copies the answer that it is writing: of each call one, beside what is counted here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakValueDictionary

from core.errors import DeadlineExceeded


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """What calls may hold, in bytes."""

    stream_bytes: int
    connection_bytes: int
    all_bytes: int


class Call(Protocol):
    """A call that tells when it is done, as gRPC's contexts do."""

    def add_done_callback(self, callback: Any, /) -> None:
        """Call ``callback`` once the call is done."""


class Account(Protocol):
    """What a request is charged to: a stream, or the connection of a call with one request."""

    async def take(self, size_bytes: int | None, deadline: float | None) -> Charge:
        """Charge a request, as soon as there is room for it.

        Args:
            size_bytes: of the request and its answer; None: not known, taken for a whole stream's.
            deadline: by the event loop's clock.

        Raises:
            DeadlineExceeded: there was no room until then.
        """

    def change(self, held_bytes: int, unread_bytes: int) -> None:
        """Hold so much more than before; negative: less."""


class Charge:
    """What one request holds; nothing from ``release`` on. Belongs to the event loop."""

    __slots__ = ("_account", "_held_bytes", "_unread_bytes")

    def __init__(self, account: Account, held_bytes: int) -> None:
        self._account = account
        self._held_bytes = held_bytes
        self._unread_bytes = 0

    def answered(self, size_bytes: int) -> None:
        """Hold the answer from now on, and the request no longer."""
        self._become(size_bytes, size_bytes)

    def release(self) -> None:
        """Hold nothing: the answer was taken, or never will be. May be called twice."""
        self._become(0, 0)

    def release_when_done(self, call: Call) -> None:
        """Release at the end of ``call``, which keeps this charge alive, not the answer."""
        call.add_done_callback(lambda _: self.release())

    def _become(self, held_bytes: int, unread_bytes: int) -> None:
        more, more_unread = held_bytes - self._held_bytes, unread_bytes - self._unread_bytes
        self._held_bytes, self._unread_bytes = held_bytes, unread_bytes
        self._account.change(more, more_unread)


class CallMemory:
    """All calls of one server. Belongs to the event loop."""

    def __init__(self, limits: MemoryLimits) -> None:
        self.limits = limits
        self.held_bytes = 0
        self.unread_bytes = 0  # of answers that are computed
        self._connections: WeakValueDictionary[str, ConnectionMemory] = WeakValueDictionary()
        self._waiting: dict[ConnectionMemory, None] = {}

    def connection(self, peer: str) -> ConnectionMemory:
        """What the calls of one connection hold; ``peer`` as gRPC names it."""
        found = self._connections.get(peer)
        if found is None:
            found = self._connections[peer] = ConnectionMemory(self)
        return found

    def stream(self, peer: str) -> StreamMemory:
        """What one new stream of a connection holds."""
        return StreamMemory(self.connection(peer), self.limits.stream_bytes)

    def waits(self, connection: ConnectionMemory) -> None:
        """Remember a connection that has no room."""
        self._waiting[connection] = None

    def let_in(self) -> None:
        """Let requests in that fit now, of any connection."""
        for connection in list(self._waiting):
            if not connection.queue.let_in():
                del self._waiting[connection]


class _Queue:
    """Requests that wait for room, first come, first served."""

    def __init__(self, account: ConnectionMemory | StreamMemory) -> None:
        self._account = account
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def wait(self, size_bytes: int, deadline: float | None) -> None:
        """Return when the account has let ``size_bytes`` in."""
        entry = size_bytes, asyncio.get_running_loop().create_future()
        self._waiting.append(entry)
        try:
            async with asyncio.timeout_at(deadline):
                await entry[1]
        except BaseException as error:
            self._leave(*entry)
            if isinstance(error, TimeoutError):
                raise DeadlineExceeded(
                    "the deadline passed while this request waited for memory that requests under "
                    "way hold, and answers that waited to be read"
                ) from None
            raise

    def let_in(self) -> bool:
        """Let in those at the head that fit; returns whether any wait still."""
        while self._waiting and self._account.fits(self._waiting[0][0]):
            size_bytes, entered = self._waiting.popleft()
            if not entered.done():
                self._account.add(size_bytes)
                entered.set_result(None)
        return bool(self._waiting)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def _leave(self, size_bytes: int, entered: asyncio.Future[None]) -> None:
        if entered.done() and not entered.cancelled():
            self._account.free(size_bytes)  # let in at the same moment
        elif (size_bytes, entered) in self._waiting:
            self._waiting.remove((size_bytes, entered))
            self.let_in()


class ConnectionMemory:
    """What all calls of one connection hold together."""

    def __init__(self, everything: CallMemory) -> None:
        self.everything = everything
        self.held_bytes = 0
        self.queue = _Queue(self)

    async def take(self, size_bytes: int | None, deadline: float | None) -> Charge:
        """As ``Account`` says."""
        size = self.everything.limits.stream_bytes if size_bytes is None else size_bytes
        await self.enter(size, deadline)
        return Charge(self, size)

    async def enter(self, size_bytes: int, deadline: float | None) -> None:
        """Hold so much, as soon as there is room."""
        if not self.queue and self.fits(size_bytes):
            self.add(size_bytes)
        else:
            self.everything.waits(self)
            await self.queue.wait(size_bytes, deadline)

    def fits(self, size_bytes: int) -> bool:
        """Whether a request may enter."""
        limits = self.everything.limits
        return not self.held_bytes or (
            self.held_bytes + size_bytes <= limits.connection_bytes
            and self.everything.held_bytes + size_bytes <= limits.all_bytes
        )

    def add(self, size_bytes: int) -> None:
        """Hold so much more."""
        self.held_bytes += size_bytes
        self.everything.held_bytes += size_bytes

    def free(self, size_bytes: int) -> None:
        """Hold so much less, and let in what fits now."""
        self.add(-size_bytes)
        self.queue.let_in()
        self.everything.let_in()

    def change(self, held_bytes: int, unread_bytes: int) -> None:
        """As ``Account`` says."""
        self.everything.unread_bytes += unread_bytes
        self.free(-held_bytes)


class StreamMemory:
    """What the requests of one stream hold together."""

    def __init__(self, connection: ConnectionMemory, limit_bytes: int) -> None:
        self.held_bytes = 0
        self._connection = connection
        self._limit_bytes = limit_bytes
        self._queue = _Queue(self)
        self._entering = 0  # requests that wait for room here or in the connection
        self._charged_bytes = self._unread_bytes = 0  # of what has entered the connection, too
        self._is_closed = False
        self._changed = asyncio.Event()

    async def room(self) -> None:
        """Return when another request may be read: none waits, and the limit is not reached."""
        while self._entering or self.held_bytes >= self._limit_bytes:
            self._changed.clear()
            await self._changed.wait()

    async def take(self, size_bytes: int | None, deadline: float | None) -> Charge:
        """As ``Account`` says."""
        size = self._limit_bytes if size_bytes is None else size_bytes
        self._entering += 1
        try:
            if not self._queue and self.fits(size):
                self.add(size)
            else:
                await self._queue.wait(size, deadline)
            try:
                await self._connection.enter(size, deadline)
            except BaseException:
                self.free(size)
                raise
        finally:
            self._entering -= 1
            self._changed.set()
        self._charged_bytes += size
        return Charge(self, size)

    def close(self) -> None:
        """Release whatever is charged still: the stream has ended, and its requests with it."""
        self.change(-self._charged_bytes, -self._unread_bytes)
        self._is_closed = True

    def fits(self, size_bytes: int) -> bool:
        """Whether a request may enter."""
        return not self.held_bytes or self.held_bytes + size_bytes <= self._limit_bytes

    def add(self, size_bytes: int) -> None:
        """Hold so much more."""
        self.held_bytes += size_bytes

    def change(self, held_bytes: int, unread_bytes: int) -> None:
        """As ``Account`` says."""
        if self._is_closed:
            return
        self._charged_bytes += held_bytes
        self._unread_bytes += unread_bytes
        self.free(-held_bytes)
        self._connection.change(held_bytes, unread_bytes)

    def free(self, size_bytes: int) -> None:
        """Hold so much less here, and let in what fits now."""
        self.add(-size_bytes)
        self._queue.let_in()
        self._changed.set()
