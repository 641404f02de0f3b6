"""Limits on the memory of calls: of requests being computed, and answers that are not taken yet.

    infer ──take──> StreamMemory ──> ConnectionMemory ──> CallMemory      a limit in bytes each
      └── Charge: request and expected answer ──answered──> the answer ──release──> nothing

A request that does not fit waits before it is computed, first come, first served; while one of a
stream waits, nothing more of that stream is read. A stream or connection that holds nothing is
always let in, so that callers that take their answers are served whatever others hold: all
calls together hold at most the limit and one request for each connection.

An answer is taken when gRPC has accepted its last byte, which waits for the caller's flow control.
gRPC copies the answer that it is writing: one of each call, which is not counted here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakValueDictionary

from braid.core.errors import DeadlineExceeded


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Most bytes that calls may hold."""

    stream_bytes: int
    connection_bytes: int
    all_bytes: int


class EndingCall(Protocol):
    """Call that tells when it is done, as gRPC's contexts do."""

    def add_done_callback(self, callback: Any, /) -> None:
        """Call ``callback`` once the call is done."""


class Account(Protocol):
    """Account that requests are charged to: a stream, or the connection of a single call."""

    async def take(self, size_bytes: int | None, deadline: float | None) -> Charge:
        """Charge a request, as soon as there is room.

        Args:
            size_bytes: of the request and its answer; None: not known, counted as the limit of a
                stream.
            deadline: by the event loop's clock.

        Raises:
            DeadlineExceeded: there was no room until then.
        """

    def change(self, held_bytes: int, unread_bytes: int) -> None: ...


class Charge:
    """Bytes that one request holds until ``release``. Belongs to the event loop."""

    __slots__ = ("_account", "_held_bytes", "_unread_bytes")

    def __init__(self, account: Account, held_bytes: int) -> None:
        self._account = account
        self._held_bytes = held_bytes
        self._unread_bytes = 0

    def answered(self, size_bytes: int) -> None:
        """Charge the answer of ``size_bytes`` in place of the request."""
        more, more_unread = size_bytes - self._held_bytes, size_bytes - self._unread_bytes
        self._held_bytes = self._unread_bytes = size_bytes
        self._account.change(more, more_unread)

    def release(self, _: object = None) -> None:
        """Charge 0 bytes, as the answer was taken or never will be. May be called twice."""
        self.answered(0)

    def release_when_done(self, call: EndingCall) -> None:
        """Release at the end of ``call``, which keeps this charge alive, not the answer."""
        call.add_done_callback(self.release)


class LaterReply(Protocol):
    """Reply that is written while it is sent."""

    def __len__(self) -> int:
        """Bytes of memory that it holds until then."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Reply to a request, and the memory charged for the reply."""

    reply: bytes | LaterReply
    charge: Charge | None = None  # errors within a stream have none

    def release(self) -> None:
        """Release the charge: the caller has taken the reply, or has left."""
        if self.charge is not None:
            self.charge.release()


class CallMemory:
    """Memory of all calls of one server. Belongs to the event loop."""

    def __init__(self, limits: MemoryLimits) -> None:
        self.limits = limits
        self.held_bytes = 0
        self.unread_bytes = 0  # of answers that are computed
        self._connections: WeakValueDictionary[str, ConnectionMemory] = WeakValueDictionary()
        self.waiting: dict[ConnectionMemory, None] = {}  # those whose next request does not fit

    def connection(self, peer: str) -> ConnectionMemory:
        """Return the account of one connection; ``peer`` as gRPC names it."""
        account = self._connections.get(peer)
        if account is None:
            account = self._connections[peer] = ConnectionMemory(self)
        return account

    def stream(self, peer: str) -> StreamMemory:
        """Return the account of a new stream of the connection from ``peer``."""
        return StreamMemory(self.connection(peer), self.limits.stream_bytes)

    def let_in(self) -> None:
        """Let in the waiting requests of any connection that fit now."""
        for connection in list(self.waiting):
            if not connection.queue.let_in():
                del self.waiting[connection]


class _Queue:
    """Requests that wait for room, first come, first served."""

    def __init__(self, account: ConnectionMemory | StreamMemory) -> None:
        self.waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._account = account

    async def wait(self, size_bytes: int, deadline: float | None) -> None:
        """Return when the account has let ``size_bytes`` in."""
        entry = size_bytes, asyncio.get_running_loop().create_future()
        self.waiting.append(entry)
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
        """Let in the requests at the head that fit; returns True if some wait still."""
        while self.waiting and self._account.fits(self.waiting[0][0]):
            size_bytes, entered = self.waiting.popleft()
            if not entered.done():
                self._account.add(size_bytes)
                entered.set_result(None)
        return bool(self.waiting)

    def _leave(self, size_bytes: int, entered: asyncio.Future[None]) -> None:
        if entered.done() and not entered.cancelled():
            self._account.free(size_bytes)  # let in at the same moment
        elif (size_bytes, entered) in self.waiting:
            self.waiting.remove((size_bytes, entered))
            self.let_in()


class ConnectionMemory:
    """Account of one connection, with all its calls."""

    def __init__(self, all_calls: CallMemory) -> None:
        self.all_calls = all_calls
        self.held_bytes = 0
        self.queue = _Queue(self)

    async def take(self, size_bytes: int | None, deadline: float | None) -> Charge:
        size = self.all_calls.limits.stream_bytes if size_bytes is None else size_bytes
        await self.enter(size, deadline)
        return Charge(self, size)

    async def enter(self, size_bytes: int, deadline: float | None) -> None:
        if not self.queue.waiting and self.fits(size_bytes):
            self.add(size_bytes)
        else:
            self.all_calls.waiting[self] = None
            await self.queue.wait(size_bytes, deadline)

    def fits(self, size_bytes: int) -> bool:
        limits = self.all_calls.limits
        return not self.held_bytes or (
            self.held_bytes + size_bytes <= limits.connection_bytes
            and self.all_calls.held_bytes + size_bytes <= limits.all_bytes
        )

    def add(self, size_bytes: int) -> None:
        self.held_bytes += size_bytes
        self.all_calls.held_bytes += size_bytes

    def free(self, size_bytes: int) -> None:
        """Charge ``size_bytes`` less, and let in what fits now."""
        self.change(-size_bytes, 0)

    def change(self, held_bytes: int, unread_bytes: int) -> None:
        self.held_bytes += held_bytes
        self.all_calls.held_bytes += held_bytes
        self.all_calls.unread_bytes += unread_bytes
        if self.all_calls.waiting:  # this connection among them, if a request of it waits
            self.queue.let_in()
            self.all_calls.let_in()


class StreamMemory:
    """Account of one stream, charged to its connection, too."""

    def __init__(self, connection: ConnectionMemory, limit_bytes: int) -> None:
        self.held_bytes = 0
        self._connection = connection
        self._limit_bytes = limit_bytes
        self._queue = _Queue(self)
        self._entering = 0  # requests that wait for room here or in the connection
        self._charged_bytes = self._unread_bytes = 0  # of requests that entered the connection
        self._is_closed = False
        self._changed = asyncio.Event()

    async def wait_for_room(self) -> None:
        """Return when another request may be read: none waits, and the limit is not reached."""
        while self._entering or self.held_bytes >= self._limit_bytes:
            self._changed.clear()
            await self._changed.wait()

    async def take(self, size_bytes: int | None, deadline: float | None) -> Charge:
        size = self._limit_bytes if size_bytes is None else size_bytes
        self._entering += 1
        try:
            if not self._queue.waiting and self.fits(size):
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
        """Release all charges at the end of the stream."""
        self.change(-self._charged_bytes, -self._unread_bytes)
        self._is_closed = True

    def fits(self, size_bytes: int) -> bool:
        return not self.held_bytes or self.held_bytes + size_bytes <= self._limit_bytes

    def add(self, size_bytes: int) -> None:
        self.held_bytes += size_bytes

    def change(self, held_bytes: int, unread_bytes: int) -> None:
        if self._is_closed:
            return
        self._charged_bytes += held_bytes
        self._unread_bytes += unread_bytes
        self.free(-held_bytes)
        self._connection.change(held_bytes, unread_bytes)

    def free(self, size_bytes: int) -> None:
        """Charge ``size_bytes`` less here, and let in what fits now."""
        self.add(-size_bytes)
        if self._queue.waiting:
            self._queue.let_in()
        self._changed.set()
