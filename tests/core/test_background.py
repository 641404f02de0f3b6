"""Work that goes on without its callers: it ends, and its failures are told once."""

from __future__ import annotations

import asyncio
import gc
import logging
from contextlib import suppress

import pytest

from braid.core.background import log_unexpected, though_callers_leave
from braid.core.errors import InvalidRequest


def told(caplog: pytest.LogCaptureFixture) -> list[int]:
    """Levels of the lines told of work; garbage of other tests may be collected here, and tell."""
    return [line.levelno for line in caplog.records if line.name == "braid.background"]


async def left_alone(error: Exception) -> list[dict[str, object]]:
    """What the event loop complains of when work fails after its only caller has left."""
    loop, complaints = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await goes_on.wait()
        raise error

    caller = asyncio.create_task(though_callers_leave(work()))
    await begun.wait()
    caller.cancel()
    with suppress(asyncio.CancelledError):
        await caller
    goes_on.set()
    for _ in range(5):
        await asyncio.sleep(0)
    gc.collect()
    return complaints


async def test_callers_that_stay_get_the_result_and_the_error() -> None:
    async def answer() -> int:
        return 7

    async def refuse() -> None:
        raise InvalidRequest("no")

    assert await though_callers_leave(answer()) == 7
    with pytest.raises(InvalidRequest):
        await though_callers_leave(refuse())


async def test_a_refusal_that_no_caller_waits_for_is_no_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert not await left_alone(InvalidRequest("no"))
    assert not told(caplog)


async def test_a_fault_that_no_caller_waits_for_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert not await left_alone(ZeroDivisionError("a fault"))
    assert told(caplog) == [logging.ERROR]


async def test_a_cancelled_task_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    task = asyncio.create_task(asyncio.sleep(60))
    task.add_done_callback(log_unexpected)
    task.cancel()
    await asyncio.wait([task])

    assert not told(caplog)
