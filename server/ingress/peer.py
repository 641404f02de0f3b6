"""The owner's end of the link to one ingress: answers its calls, and frees what it had.

    frame ──> task ──> reply ──> shared memory ──> frame        a call ends with one last word
    link lost ──> tasks cancelled, their requests leave the queues

An ingress is this program, so frames are trusted; who may call was decided there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

from core.errors import BraidError, RequestCancelled
from engine.worker.arena import Arena
from engine.worker.error_messages import error_body
from engine.worker.frames import FrameDecoder, Message, encode
from server.ingress.calls import CALLS
from server.ingress.replies import Placed, ReplyMemory
from server.ingress.vitals import Vitals
from server.logs import request_id
from server.servicers.methods import Refusal, counted
from server.servicers.protowire import Join

log = logging.getLogger("braid.ingress")

Answer = Callable[[Any, float | None, Join], Awaitable[Any]]
"""Runs a request that its method's ``InferenceCall.read`` read, with the seconds it has.

The answer is what ``Join`` makes of the reply's parts.
"""


@dataclass(frozen=True, slots=True)
class Inference:
    """What the owner does for any ingress."""

    answers: Mapping[str, Answer]  # by full method name
    refusal: Refusal
    follow: Callable[[Mapping[str, str]], None]  # lets a task belong to the caller's trace


class Peer(asyncio.Protocol):
    """One ingress, from its start to its end. Belongs to the event loop."""

    def __init__(self, inference: Inference, memory_bytes: int) -> None:
        self.requests = Arena(memory_bytes)  # allocated over there
        self.replies = ReplyMemory(memory_bytes)  # allocated here
        self.vitals = Vitals()
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once it listens; fails with its reason if it cannot."""
        self.lost = asyncio.Event()
        self._inference = inference
        self._tasks: dict[int, asyncio.Task[Placed | bytes]] = {}
        self._without_room: deque[tuple[int, bytes]] = deque()  # replies that wait for memory
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Handle each frame."""
        for message in self._decoder.feed(data):
            self._free(message.get("taken", ()))
            if op := message.get("op"):
                _OPS[op](self, message)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone: nobody waits for what it asked, and its memory goes."""
        self.lost.set()
        if not self.started.done():
            self.started.set_exception(BraidError("it ended before it listened"))
        self.vitals.has_ended()
        for task in self._tasks.values():
            task.cancel()
        self._without_room.clear()
        self.requests.abandon()
        self.replies.abandon()

    def tell(self, message: Message) -> None:
        """Send a frame, if it is there."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(message))

    def close(self) -> None:
        """End the link, which ends the process."""
        if self._transport is not None:
            self._transport.close()

    # -- frames, by what they ask -------------------------------------------------------------

    def _on_up(self, _: Message) -> None:
        if not self.started.done():
            self.started.set_result(None)

    def _on_failed(self, message: Message) -> None:
        if not self.started.done():
            self.started.set_exception(BraidError(message["reason"]))

    def _on_state(self, message: Message) -> None:
        self.vitals.heard(message["calls"], message["refused"])

    def _on_infer(self, message: Message) -> None:
        number = message["id"]
        task = self._tasks[number] = asyncio.create_task(self._answer(message))
        task.add_done_callback(partial(self._ended, number))

    def _on_refusal(self, message: Message) -> None:
        """What any request gets now; nothing if that depends on the request."""
        target = self._inference.refusal()
        self._say_last(message["id"], {} if target is None else _failed(counted(target)))

    def _on_cancel(self, message: Message) -> None:
        if task := self._tasks.get(message["id"]):
            task.cancel()

    # -- calls --------------------------------------------------------------------------------

    async def _answer(self, message: Message) -> Placed | bytes:
        """Run one request; its bytes stay where they are until the last word."""
        request_id.set(message["request_id"])
        self._inference.follow(message.get("trace", {}))
        method, offset, deadline = message["method"], message["offset"], message["deadline"]
        seconds = None if deadline is None else deadline - monotonic()  # one clock for both
        data = self.requests.view[offset : offset + message["size"]]
        try:
            answer, join = self._inference.answers[method], self.replies.join_for(message["id"])
            reply: Placed | bytes = await answer(CALLS[method].read(data), seconds, join)
            return reply
        except BraidError:
            raise
        except Exception as error:
            log.error("internal error", exc_info=error)
            raise BraidError("internal error") from None

    def _ended(self, number: int, task: asyncio.Task[Placed | bytes]) -> None:
        del self._tasks[number]
        error = RequestCancelled("the caller has left") if task.cancelled() else task.exception()
        if self.lost.is_set():
            return
        if error is not None:
            self.replies.drop(number)
            self._say_last(number, _failed(error))
        elif isinstance(reply := task.result(), Placed):
            self._hand_over(number, reply)
        elif self._without_room or not self._place(number, reply):
            self._without_room.append((number, reply))

    def _hand_over(self, number: int, reply: Placed) -> None:
        self.replies.hand_over(number)
        self._say_last(number, {"offset": reply.offset, "size": reply.size_bytes})

    def _place(self, number: int, reply: bytes) -> bool:
        """Hand over a reply that had no room when it was made; False while there still is none."""
        try:
            placed = self.replies.place(number, [reply])
        except BraidError as error:
            self._say_last(number, _failed(error))
            return True
        if placed is not None:
            self._hand_over(number, placed)
        return placed is not None

    def _free(self, offsets: list[int]) -> None:
        """The ingress has copied these replies."""
        for offset in offsets:
            self.replies.arena.release(offset)
        while offsets and self._without_room and self._place(*self._without_room[0]):
            self._without_room.popleft()

    def _say_last(self, number: int, message: Message) -> None:
        self.tell({"id": number, **message})


_OPS: Mapping[str, Callable[[Peer, Message], None]] = {
    "up": Peer._on_up,
    "failed": Peer._on_failed,
    "state": Peer._on_state,
    "infer": Peer._on_infer,
    "refusal": Peer._on_refusal,
    "cancel": Peer._on_cancel,
}


def _failed(error: BaseException) -> Message:
    assert isinstance(error, BraidError)
    return {"error": error_body(error)}
