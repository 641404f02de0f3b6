"""Alarms of one connection: its peer greets in time, answers pings, and reads why it is left."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Final

from braid.server.http2 import frames
from braid.server.http2.frames import frame
from braid.server.http2.sending import Sender

FAREWELL_S: Final = 1.0
"""Time for a peer to read why its connection ends."""


@dataclass(slots=True)
class KeepAlive:
    """Watch over one connection. Belongs to the event loop."""

    _sender: Sender
    _every_s: float  # that a peer may be silent before it is pinged
    _answer_s: float  # that it has to answer
    heard_at: float = field(default_factory=monotonic)
    has_greeted: bool = False
    _alarm: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._wait(min(self._every_s, self._answer_s), self._check_greeting)

    def stop(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    def end_soon(self) -> None:
        """Abort the connection unless the peer has closed it by then."""
        self._wait(FAREWELL_S, self._abort)

    def _wait(self, seconds: float, then: Callable[[], object]) -> None:
        self.stop()
        self._alarm = asyncio.get_running_loop().call_later(seconds, then)

    def _abort(self) -> None:
        self._sender.transport.abort()

    def _check_greeting(self) -> None:
        """Abort unless the peer speaks HTTP/2 by now."""
        if self.has_greeted:
            self._ping()
        else:
            self._abort()

    def _ping(self) -> None:
        """Ask whether the peer is there, if nothing came for long."""
        idle_s = monotonic() - self.heard_at
        if idle_s < self._every_s:
            self._wait(self._every_s - idle_s, self._ping)
        else:
            self._sender.control(frame(frames.PING, 0, 0, b"braid-up"))
            self._wait(self._answer_s, partial(self._check, self.heard_at))

    def _check(self, heard_at: float) -> None:
        if self.heard_at == heard_at:
            self._abort()
        else:
            self._wait(self._every_s, self._ping)
