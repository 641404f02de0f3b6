import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue
from grpc._cython.cygrpc import ExecuteBatchError

from braid.server.inference.call_memory import CallMemory, MemoryLimits
from braid.server.observability.logs import Seldom
from braid.server.rpc.guarding import GRPC_LOG, SMALL_BYTES, filter_grpc_log, guarded
from tests.clock import until_true


def memory() -> CallMemory:
    """Room for one large answer."""
    return CallMemory(MemoryLimits(SMALL_BYTES, SMALL_BYTES, SMALL_BYTES))


LEFT = ExecuteBatchError('Failed "execute_batch": (SendMessageOperation,)')
MISUSED = ExecuteBatchError("Failed grpc_call_start_batch: 8 with error: too many operations")


class Context:
    """A call whose caller leaves after some answers."""

    def __init__(self, answers: int, failure: Exception = LEFT) -> None:
        self.left = answers
        self.failure = failure
        self.written: list[Any] = []

    async def write(self, answer: Any) -> None:
        if not self.left:
            raise self.failure
        self.left -= 1
        self.written.append(answer)


class Counting:
    """A method that yields numbers, and knows when it was ended."""

    def __init__(self) -> None:
        self.has_ended = False

    async def answers(self, request: bytes, context: Any) -> AsyncIterator[int]:
        try:
            for number in range(10):
                yield number
        finally:
            self.has_ended = True


async def call(method: Any, context: Any) -> None:
    handler: Any = guarded(grpc.unary_stream_rpc_method_handler(method, bytes), "/a/b", memory())
    await handler.unary_stream(b"", context)


async def test_a_method_whose_caller_has_left_ends_as_if_cancelled() -> None:
    context, counting = Context(answers=2), Counting()

    with pytest.raises(asyncio.CancelledError):
        await call(counting.answers, context)

    assert context.written == [0, 1]
    assert counting.has_ended


class OneAnswer:
    """A call with one answer, until whose end it is held."""

    def __init__(self) -> None:
        self.done: list[Callable[[Any], None]] = []

    def peer(self) -> str:
        return "a"

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.done.append(callback)

    def end(self) -> None:
        for callback in self.done:
            callback(None)


async def test_a_method_of_large_answers_waits_while_earlier_ones_are_not_read() -> None:
    held, asked = memory(), 0

    async def list_all(request: bytes, context: Any) -> BytesValue:
        nonlocal asked
        asked += 1
        return BytesValue(value=b"x" * (SMALL_BYTES + 1000))

    method = grpc.unary_unary_rpc_method_handler(list_all, bytes, BytesValue.SerializeToString)
    handler: Any = guarded(method, "/a/b", held)
    calls = [OneAnswer() for _ in range(4)]
    await handler.unary_unary(b"", calls[0])  # says how large they are
    calls[0].end()
    await handler.unary_unary(b"", calls[1])
    assert held.held_bytes == held.unread_bytes > SMALL_BYTES
    waiting = [asyncio.ensure_future(handler.unary_unary(b"", call)) for call in calls[2:]]
    for _ in range(10):
        await asyncio.sleep(0)
    assert asked == 2

    for call in calls[1:]:
        await until_true(partial(getattr, call, "done"))
        call.end()

    await asyncio.gather(*waiting)
    assert asked == 4


async def test_misuse_of_grpc_is_no_departure() -> None:
    with pytest.raises(ExecuteBatchError, match="too many"):
        await call(Counting().answers, Context(answers=0, failure=MISUSED))


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_a_departure_behind_an_answer_is_a_line_for_debugging(
    caplog: pytest.LogCaptureFixture, level: int
) -> None:
    filter_grpc_log()
    caplog.set_level(level, GRPC_LOG)

    for error in (LEFT, MISUSED):
        logging.getLogger(GRPC_LOG).error("raised in core by [%s]", "Infer", exc_info=error)

    found = [(each.levelname, each.exc_info is None) for each in caplog.records]
    assert found == [("DEBUG", True)] * (level == logging.DEBUG) + [("ERROR", False)]


def test_seldom_counts_what_it_holds_back() -> None:
    now = 0.0
    seldom = Seldom(10.0, lambda: now)

    assert [seldom.passes() for _ in range(3)] == [0, None, None]
    now = 9.9
    assert seldom.passes() is None
    now = 10.0
    assert [seldom.passes(), seldom.passes()] == [3, None]
    now = 20.0
    assert seldom.passes() == 1
