"""An ingress's end of the link: calls to the owner, and the memory that requests lie in.

    infer ──message──> shared memory ──frame──> owner ──frame──> reply, copied out
       └── cancelled ──{op: cancel}──> owner: leaves the queue at once

Every call ends exactly once: with its reply, with the owner's error, or with Unavailable when the
owner is gone. Its memory is free after the owner's last word only, not when the caller has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from core.errors import QueueFull, ResourceExhausted, Unavailable
from engine.worker.arena import Arena
from engine.worker.error_messages import error_from
from engine.worker.frames import FrameDecoder, Message, encode
from server.logs import request_id

FLUSH_SECONDS = 0.02
"""Longest time until the owner hears which replies were copied; else with the next call."""

RETRY_SECONDS = 0.1

Trace = dict[str, str]
"""The caller's trace context, as metadata carried it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Open:
    """A call that has not ended."""

    answer: asyncio.Future[bytes]
    offset: int | None  # of its message


class OwnerLink(asyncio.Protocol):
    """Belongs to the event loop."""

    def __init__(self, requests: Arena, replies: Arena) -> None:
        self.greeting: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        """The owner's first frame: how to begin."""
        self.on_notice: Callable[[Message], None] = lambda message: None
        """Told each later frame that ends no call."""
        self.lost = asyncio.Event()
        self.is_crowded = False
        """Whether a queue was full lately, so that asking first may save reading a message."""
        self.refused = 0  # calls, for want of memory
        self._requests = requests
        self._replies = replies
        self._open: dict[int, _Open] = {}
        self._last_number = 0
        self._room = asyncio.Event()  # set when a message's memory was freed
        self._taken: list[int] = []  # replies that were copied, for the owner to free
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None

    # -- calls --------------------------------------------------------------------------------

    async def infer(
        self, method: str, message: bytes, seconds: float | None, trace: Trace, *, waits: bool
    ) -> bytes:
        """The reply to one message of an inference RPC.

        Args:
            method: its full name.
            message: as it came.
            seconds: until the caller's deadline.
            trace: context of the caller's.
            waits: for memory, rather than being refused.

        Raises:
            BraidError: whatever ended it.
        """
        deadline = None if seconds is None else monotonic() + seconds
        offset = await self._place(message, waits)
        call = {"op": "infer", "method": method, "offset": offset, "size": len(message)}
        if trace:
            call["trace"] = trace
        return await self._call({**call, "deadline": deadline}, offset)

    async def check_refusal(self) -> None:
        """Ask whether any request would be refused now, whatever it is.

        Raises:
            BraidError: it would, with this; it was counted there.
        """
        await self._call({"op": "refusal"}, None)
        self.is_crowded = False

    def tell(self, message: Message) -> None:
        """Send a frame, and what was taken with it."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._taken:
            message["taken"], self._taken = self._taken, []
        self._transport.write(encode(message))

    async def _place(self, message: bytes, waits: bool) -> int:
        """Write a message into shared memory."""
        while (offset := self._requests.allocate(len(message))) is None:
            if not waits:
                self.refused += 1
                raise ResourceExhausted(
                    "the requests that wait fill the shared memory of this server process; send "
                    "fewer at once or raise BRAID_SHARED_MEMORY_BYTES",
                    RETRY_SECONDS,
                )
            if self.lost.is_set():
                raise _gone()
            self._room.clear()
            await self._room.wait()
        self._requests.view[offset : offset + len(message)] = message
        return offset

    async def _call(self, message: Message, offset: int | None) -> bytes:
        if self.lost.is_set():
            raise _gone()
        self._last_number += 1
        number = self._last_number
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._open[number] = _Open(answer, offset)
        self.tell({"id": number, "request_id": request_id.get(), **message})
        try:
            return await answer
        except asyncio.CancelledError:
            self.tell({"op": "cancel", "id": number})
            raise

    # -- what the owner says ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way to the owner."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """End the calls that the owner has said its last word of."""
        for message in self._decoder.feed(data):
            if "id" in message:
                self._end(self._open.pop(message["id"]), message)
            elif not self.greeting.done():
                self.greeting.set_result(message)
            else:
                self.on_notice(message)

    def connection_lost(self, exc: Exception | None) -> None:
        """The owner is gone: nobody in flight will be answered."""
        self.lost.set()
        self._room.set()
        if not self.greeting.done():
            self.greeting.set_exception(_gone())
        calls, self._open = self._open, {}
        for call in calls.values():
            if not call.answer.done():
                call.answer.set_exception(_gone())

    def _end(self, call: _Open, message: Message) -> None:
        if call.offset is not None:
            self._requests.release(call.offset)
            self._room.set()
        result = self._result(message)
        if call.answer.done():
            return  # its caller has left
        if isinstance(result, Exception):
            call.answer.set_exception(result)
        else:
            call.answer.set_result(result)

    def _result(self, message: Message) -> bytes | Exception:
        if "error" in message:
            error = error_from(message["error"])
            self.is_crowded |= isinstance(error, QueueFull)
            return error
        if "offset" not in message:
            return b""
        offset = message["offset"]
        reply = bytes(self._replies.view[offset : offset + message["size"]])
        if not self._taken:
            asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush)
        self._taken.append(offset)
        return reply

    def _flush(self) -> None:
        if self._taken:
            self.tell({})


def _gone() -> Unavailable:
    return Unavailable("the server is restarting; try again in a moment")
