"""Windows for what one peer sends, and memory of its messages on their way in.

    DATA ──received──> windows ──allow_more──> WINDOW_UPDATE
                                    └── a long message: as soon as its connection has room for it

Windows are large, so that a tensor comes without a pause. A stream's window is let in uncounted. A
message that is longer is charged when it begins, until its handler asks for the next one or the
call ends: connections hold messages up to the limits of ``MemoryLimits``, one of each at least.
Requests under way are charged elsewhere, to the same limits, so neither waits for the other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from braid.server.http2 import frames
from braid.server.http2.frames import ConnectionFault, ErrorCode, number_frame
from braid.server.http2.messages import WINDOW_BYTES, Incoming
from braid.server.http2.sending import Sender
from braid.server.inference.call_memory import ConnectionMemory

CONNECTION_WINDOW_BYTES: Final = 16 << 20


class _Charge:
    """Memory of one message."""

    __slots__ = ("entering", "number", "size_bytes")

    def __init__(self, number: int, size_bytes: int) -> None:
        self.number = number  # among the messages of its stream
        self.size_bytes = size_bytes
        self.entering: asyncio.Task[None] | None = None  # set while it waits for room


class Intake:
    """Bounds of one connection's messages. Belongs to the event loop."""

    def __init__(self, sender: Sender, memory: ConnectionMemory) -> None:
        self._sender = sender
        self._memory = memory
        self._window = CONNECTION_WINDOW_BYTES
        self._charges: dict[int, deque[_Charge]] = {}  # by stream, in the order of its messages

    def received(self, incoming: Incoming | None, length: int) -> None:
        """Count received bytes of a frame of DATA; ``incoming`` is None for no call.

        Raises:
            ConnectionFault: there are more than a window has room for.
        """
        self._window -= length
        if incoming is not None:
            incoming.window -= length
        if self._window < 0 or (incoming is not None and incoming.window < 0):
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more than the window was sent")
        if self._window <= CONNECTION_WINDOW_BYTES // 2:
            more, self._window = CONNECTION_WINDOW_BYTES - self._window, CONNECTION_WINDOW_BYTES
            self._sender.control(number_frame(frames.WINDOW_UPDATE, 0, more))

    def allow_more(self, incoming: Incoming, number: int) -> None:
        """Let the peer send on, unless a message waits to be read or one has no memory yet."""
        if incoming.ready or incoming.has_ended:
            return
        if incoming.body_bytes > WINDOW_BYTES and not self._admit(incoming, number):
            return
        wanted = max(WINDOW_BYTES, incoming.missing_bytes)
        if incoming.window <= wanted // 2:
            more, incoming.window = wanted - incoming.window, wanted
            self._sender.control(number_frame(frames.WINDOW_UPDATE, number, more))

    def _admit(self, incoming: Incoming, number: int) -> bool:
        """Charge a message, once; returns bool: there was room for it."""
        charges = self._charges.setdefault(number, deque())
        if not charges or charges[-1].number != incoming.bodies:
            charge = _Charge(incoming.bodies, incoming.body_bytes)
            charges.append(charge)
            if not self._memory.enter_now(charge.size_bytes):
                loop = asyncio.get_running_loop()
                charge.entering = loop.create_task(self._enter(charge, incoming, number))
        return charges[-1].entering is None

    async def _enter(self, charge: _Charge, incoming: Incoming, number: int) -> None:
        await self._memory.enter(charge.size_bytes, None)
        charge.entering = None
        self.allow_more(incoming, number)

    def taken(self, incoming: Incoming, number: int) -> None:
        """Free the memory of the messages that a handler has had: it asks for the next one."""
        while incoming.long_taken:
            incoming.long_taken -= 1
            if charges := self._charges.get(number):
                self._free(charges.popleft())

    def ended(self, number: int) -> None:
        """Free all memory of a stream."""
        for charge in self._charges.pop(number, ()):
            self._free(charge)

    def _free(self, charge: _Charge) -> None:
        if charge.entering is None:
            self._memory.free(charge.size_bytes)
        else:
            charge.entering.cancel()
