"""What stands between gRPC and the servicers: callers that leave, messages that are none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc._cython.cygrpc import ExecuteBatchError

from server.logs import Seldom
from server.servicers.departures import GRPC_LOG, expect_departures
from server.servicers.guarding import guarded

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
    handler: Any = guarded(grpc.unary_stream_rpc_method_handler(method, bytes), "/a/b")
    await handler.unary_stream(b"", context)


async def test_a_method_whose_caller_has_left_ends_as_if_cancelled() -> None:
    context, counting = Context(answers=2), Counting()

    with pytest.raises(asyncio.CancelledError):
        await call(counting.answers, context)

    assert context.written == [0, 1]
    assert counting.has_ended


async def test_misuse_of_grpc_is_no_departure() -> None:
    with pytest.raises(ExecuteBatchError, match="too many"):
        await call(Counting().answers, Context(answers=0, failure=MISUSED))


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_a_departure_behind_an_answer_is_a_line_for_debugging(
    caplog: pytest.LogCaptureFixture, level: int
) -> None:
    expect_departures()
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
