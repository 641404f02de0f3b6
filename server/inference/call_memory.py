"""Memory of calls: everything that connections make the front end hold, in one account.

A request that does not fit waits before it is computed, of each connection first come, first
served; callers with less under way go first. While one of a stream waits, nothing more of that
stream is read. If no request is under way, the next one fits whatever is held, so all calls hold
the limit and one request at most. While one waits, answers are ended that their callers take more
slowly than PACE: those of connections that are furthest behind.

An answer is taken when gRPC has accepted its last byte, which waits for the caller's flow control.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

from braid.core.errors import DeadlineExceeded
from braid.server.inference.callers import KNOWN_PART, STRANGER_PART, STRANGERS_PART, Caller, Part

PACE: Final = 1 << 20
"""Bytes a second below which a peer is slow while memory is short."""
UNREAD_S: Final = 10.0
"""Time that a peer may be behind PACE in taking answers, and a handler in taking a message."""
LOOK_S: Final = 0.5
"""Time between two looks at slow peers while somebody waits."""

MAX_CALLERS: Final = 4096
"""Accounts of addresses that are remembered."""

Ending = Callable[[], object]
"""Ends a call whose caller does not take the answer."""


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Most bytes that calls may hold."""

    stream_bytes: int
    connection_bytes: int
    all_bytes: int


class Charge:
    """Bytes that one request holds until ``release``. Belongs to the event loop."""

    __slots__ = ("_connection", "_held_bytes", "_unread_bytes", "account", "ending")

    def __init__(
        self, account: Account, connection: ConnectionMemory, held_bytes: int, ending: Ending | None
    ) -> None:
        self.account = account
        self.ending = ending  # None: nothing can end the call
        self._connection = connection
        self._held_bytes = held_bytes
        self._unread_bytes = 0

    def answered(self, size_bytes: int) -> None:
        """Charge the answer of ``size_bytes`` in place of the request."""
        more, more_unread = size_bytes - self._held_bytes, size_bytes - self._unread_bytes
        self._held_bytes = self._unread_bytes = size_bytes
        connection = self._connection
        if size_bytes:
            connection.unread[self] = monotonic(), connection.taken_bytes
        else:
            connection.unread.pop(self, None)
        self.account.change(more, more_unread)

    def release(self, _: object = None) -> None:
        """Charge 0 bytes, as the answer was taken or never will be. May be called twice."""
        self.answered(0)

    def release_when_done(self, call: Any) -> None:
        """Release at the end of ``call``, whose context keeps this charge alive, not the answer."""
        self.ending = getattr(call, "cancel", None)  # the contexts of gRPC's own server have none
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

    def __init__(
        self, limits: MemoryLimits, address_of: Callable[[str], str] = lambda peer: peer
    ) -> None:
        """Hold nothing; ``address_of`` a peer is what its connections have in common."""
        self.limits = limits
        self._address_of = address_of
        self._strangers = Part(limits.all_bytes // STRANGERS_PART)
        self._known = Part(limits.all_bytes // KNOWN_PART)
        self._callers: dict[tuple[str, int | None], Caller] = {}
        self.held_bytes = 0
        self.charged_bytes = 0  # of requests under way and answers
        self.unread_bytes = 0  # of answers that are computed
        self.idle = asyncio.Event()  # set when no request is under way and all answers are taken
        self.waiting: dict[ConnectionMemory, None] = {}  # those whose next request does not fit
        self.on_room: Callable[[], object] | None = None  # called when something is released
        self._connections: WeakValueDictionary[str, ConnectionMemory] = WeakValueDictionary()
        self._alarm: asyncio.TimerHandle | None = None

    def connection(self, peer: str) -> ConnectionMemory:
        """Return the account of one connection; ``peer`` as gRPC names it."""
        account = self._connections.get(peer)
        if account is None:
            account = self._connections[peer] = ConnectionMemory(self, peer)
        return account

    def caller(self, peer: str, token: str | None) -> Caller:
        """Return the account that a peer has a part in; ``token`` is None for strangers."""
        key = self._address_of(peer), None if token is None else hash(token)
        caller = self._callers.get(key)
        if caller is None:
            if len(self._callers) == MAX_CALLERS:
                del self._callers[next(iter(self._callers))]
            is_known = token is not None
            part = self._known if is_known else self._strangers
            limit = part.limit_bytes if is_known else self.limits.all_bytes // STRANGER_PART
            caller = self._callers[key] = Caller(limit, part, is_known=is_known)
        return caller

    def stream(self, peer: str, ending: Ending | None = None) -> StreamMemory:
        return StreamMemory(self.connection(peer), self.limits.stream_bytes, ending)

    async def answers_taken(self) -> None:
        """Return once callers have taken the answers to all requests."""
        while self.charged_bytes:
            self.idle.clear()
            await self.idle.wait()

    def let_in(self) -> None:
        """Let in the waiting requests of any connection that fit now."""
        for connection in sorted(self.waiting, key=lambda waits: waits.caller.charged_bytes):
            if not connection.queue.let_in():
                self.waiting.pop(connection, None)
        if self.on_room is not None:
            self.on_room()

    def look_soon(self) -> None:
        """Look for slow peers while somebody waits."""
        if self.waiting and self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._alarm, now = None, monotonic()
        if self.waiting:
            slowest = max(self._connections.values(), key=lambda each: each.behind_s(now))
            slowest.end_unread(now)
        self.look_soon()


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

    def __init__(self, all_calls: CallMemory, peer: str) -> None:
        self.all_calls = all_calls
        self.caller = all_calls.caller(peer, None)
        self.held_bytes = 0  # of requests and answers
        self.queue = _Queue(self)
        self._peer = peer
        self._kept_bytes = 0
        self.unread: dict[Charge, tuple[float, int]] = {}  # since when; taken until then
        self.taken_bytes = 0

    def know(self, token: str) -> None:
        """Count as the caller's with this token, with all that is held, and no stranger's."""
        before = self.caller
        self.caller = after = self.all_calls.caller(self._peer, token)
        for part, sign in ((before, -1), (before.part, -1), (after, 1), (after.part, 1)):
            part.kept_bytes += sign * self._kept_bytes
        before.charged_bytes -= self.held_bytes
        after.charged_bytes += self.held_bytes

    # -- what is held at once -------------------------------------------------------------------

    def hold(self, size_bytes: int) -> bool:
        """Charge bytes until ``release``; False: there is no room, and nothing is charged."""
        caller = self.caller
        part = caller.part
        fits = (
            caller.kept_bytes + size_bytes <= caller.limit_bytes
            and part.kept_bytes + size_bytes <= part.limit_bytes
        )
        if fits:
            self.keep(size_bytes)
        return fits

    def keep(self, size_bytes: int) -> None:
        """Charge bytes that are held whether there is room or not."""
        caller, everything = self.caller, self.all_calls
        self._kept_bytes += size_bytes
        caller.kept_bytes += size_bytes
        caller.part.kept_bytes += size_bytes
        everything.held_bytes += size_bytes
        if size_bytes < 0 and (everything.waiting or everything.on_room):
            everything.let_in()

    def release(self, size_bytes: int) -> None:
        self.keep(-size_bytes)

    # -- requests and answers -------------------------------------------------------------------

    async def take(self, size_bytes: int | None, deadline: float | None) -> Charge:
        """Charge a request and its answer, as soon as there is room, or raise DeadlineExceeded.

        ``size_bytes`` None counts as a stream's limit; ``deadline`` is by the event loop's clock.
        """
        size = self.all_calls.limits.stream_bytes if size_bytes is None else size_bytes
        await self.enter(size, deadline)
        return Charge(self, self, size, None)

    def charge(self, size_bytes: int) -> Charge:
        """Charge what is there already, whether it fits or not."""
        self.add(size_bytes)
        return Charge(self, self, size_bytes, None)

    async def enter(self, size_bytes: int, deadline: float | None) -> None:
        if not self.queue.waiting and self.fits(size_bytes):
            self.add(size_bytes)
        else:
            self.all_calls.waiting[self] = None
            self.all_calls.look_soon()
            await self.queue.wait(size_bytes, deadline)

    def fits(self, size_bytes: int) -> bool:
        everything, limits = self.all_calls, self.all_calls.limits
        if self.held_bytes and self.held_bytes + size_bytes > limits.connection_bytes:
            return False
        has_room = everything.held_bytes + size_bytes <= limits.all_bytes
        return has_room or not everything.charged_bytes

    def add(self, size_bytes: int) -> None:
        self.change(size_bytes, 0)

    def free(self, size_bytes: int) -> None:
        """Charge ``size_bytes`` less, and let in what fits now."""
        self.change(-size_bytes, 0)

    def change(self, held_bytes: int, unread_bytes: int) -> None:
        everything = self.all_calls
        self.held_bytes += held_bytes
        self.caller.charged_bytes += held_bytes
        everything.charged_bytes += held_bytes
        everything.held_bytes += held_bytes
        everything.unread_bytes += unread_bytes
        if not everything.charged_bytes:
            everything.idle.set()
        if unread_bytes < 0:
            self.taken_bytes -= unread_bytes
        if held_bytes < 0 and (everything.waiting or everything.on_room):
            everything.let_in()

    def forget(self, account: Account) -> None:
        for charge in [each for each in self.unread if each.account is account]:
            del self.unread[charge]

    def behind_s(self, now: float) -> float:
        """Seconds by which the peer is behind PACE since its oldest answer waits."""
        for since, taken_bytes in self.unread.values():
            return now - since - (self.taken_bytes - taken_bytes) / PACE
        return 0.0

    def end_unread(self, now: float) -> None:
        """End the calls whose answers wait for too long; what goes on, nothing is charged for."""
        while self.behind_s(now) > UNREAD_S:
            charge = next(iter(self.unread))
            del self.unread[charge]
            (charge.ending or charge.release)()


class StreamMemory:
    """Account of one stream, charged to its connection, too."""

    def __init__(
        self, connection: ConnectionMemory, limit_bytes: int, ending: Ending | None
    ) -> None:
        self.held_bytes = 0
        self._ending = ending
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
        return Charge(self, self._connection, size, self._ending)

    def close(self) -> None:
        self.change(-self._charged_bytes, -self._unread_bytes)
        self._is_closed = True
        self._connection.forget(self)

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


Account = ConnectionMemory | StreamMemory
"""Account that requests are charged to: a stream, or the connection of a single call."""
