"""Bounds on floods: frames that carry nothing, and bytes that leave the event loop no time.

Pings, settings, window updates, priorities, empty data, frames of unknown kinds and calls that are
reset at once cost their sender next to nothing and the event loop some microseconds each: floods of
them are CVE-2019-9512 to 9518 and CVE-2023-44487. A connection earns such frames with data and with
answers that it takes, and by time; one that has spent its budget ends with ENHANCE_YOUR_CALM.
Header blocks that were not read before are paid for by what is decoded of them (``HeaderBlocks``).

A flood fills the buffers of all its connections, which one turn of the event loop would read to
their end: for half a second, in which a device that has finished is given no more to do. Strangers
have a part of the time only (``braid.server.inference.callers``); one that has used it up is read
from later.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final

from braid.server.http2.frames import ConnectionFault, ErrorCode
from braid.server.http2.sending import Sender

BUDGET_FRAMES: Final = 2000
"""Frames that a connection may send unearned, beside those of the calls that it may have open."""
FRAMES_PER_SECOND: Final = 200
FRAMES_PER_ANSWER: Final = 8
FRAMES_PER_DATA: Final = 4
"""Frames earned by a sent frame of DATA: gRPC's clients answer one with a ping and two window
updates."""
BYTES_PER_FRAME: Final = 1024
"""Bytes of received data that earn one frame."""
RAPID_S: Final = 0.1
"""Time after its beginning in which the reset of a call counts as carrying nothing."""


class FrameBudget:
    """Budget of one connection."""

    __slots__ = ("_left", "_most", "_now", "_refilled_at", "_sender", "_sent_frames")

    def __init__(self, sender: Sender, calls: int, now: Callable[[], float] = monotonic) -> None:
        """Begin with the whole budget; ``calls`` are those that the peer may have open.

        It has what their answers earn from the beginning: all calls can begin, and be answered, at
        once, and the frames that gRPC's clients send with each of them (window updates before its
        answer, too) arrive at once.
        """
        self._most = BUDGET_FRAMES + FRAMES_PER_ANSWER * calls
        self._sender = sender
        self._now = now
        self._left = self._most
        self._refilled_at = now()
        self._sent_frames = 0  # as far as they have been counted

    def earn(self, frames: int) -> None:
        self._left += frames
        if self._left > self._most:
            self._left = self._most

    def wait(self) -> None:
        """Earn nothing by the time until now, in which the peer was not read from."""
        self._refilled_at = self._now()

    def spend(self, frames: int = 1) -> None:
        """Count frames that carry nothing, or work as costly; too many raise ConnectionFault."""
        self._left -= frames
        if self._left < 0:
            now, sent = self._now(), self._sender.data_frames
            self.earn(min(BUDGET_FRAMES, int((now - self._refilled_at) * FRAMES_PER_SECOND)))
            self.earn((sent - self._sent_frames) * FRAMES_PER_DATA)
            self._refilled_at, self._sent_frames = now, sent
            if self._left < 0:
                raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many frames without use")


TURN_SECONDS: Final = 0.01
"""Shorter turns let devices wait less in a flood, and cost more: answers are sent turn by turn."""
CALL_SECONDS: Final = 1e-4
"""Time for each call that begins: it is handled after the turn."""


class ReadTurns:
    """Reading of all connections of one server. Belongs to the event loop."""

    def __init__(self) -> None:
        self._until: float | None = None  # of the present turn, by the monotonic clock
        self._waiting: deque[Callable[[], object]] = deque()

    def has_time(self, now: float) -> bool:
        """True if a connection may read in this turn; the first one that asks may."""
        if self._until is not None:
            return now < self._until
        self._until = now + TURN_SECONDS
        asyncio.get_running_loop().call_soon(self._next)
        return True

    def shorten(self) -> None:
        """Leave time in this turn for a call that begins."""
        if self._until is not None:
            self._until -= CALL_SECONDS

    def wait(self, read_on: Callable[[], object], seconds: float = 0.0) -> None:
        """Let a connection read on in a later turn, after those that wait already."""
        if seconds:
            asyncio.get_running_loop().call_later(seconds, read_on)
        else:
            self._waiting.append(read_on)

    def _next(self) -> None:
        self._until = None
        for _ in range(len(self._waiting)):
            self._waiting.popleft()()
