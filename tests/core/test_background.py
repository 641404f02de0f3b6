import asyncio
import gc
import logging
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from braid.core.background import log_unexpected, though_callers_leave
from braid.core.errors import InvalidRequest
from braid.core.keyed_locks import KeyedLocks
from braid.core.own_threads import OwnThreads


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


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """Set only after the test."""
    event = threading.Event()
    yield event
    event.set()


def test_no_end_of_a_loop_waits_for_it(never: threading.Event) -> None:
    async def main() -> None:
        calling = asyncio.create_task(OwnThreads("stuck", 1).run(never.wait))
        await asyncio.sleep(0)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling

    asyncio.run(main())  # with asyncio.to_thread it would not return

    (stuck,) = (thread for thread in threading.enumerate() if thread.name == "stuck")
    assert stuck.daemon


async def test_other_calls_go_on_beside_it(never: threading.Event) -> None:
    own = OwnThreads("stuck", 2)
    stuck = asyncio.create_task(own.run(never.wait))
    await asyncio.sleep(0)

    assert await own.run(lambda: 1) == 1
    assert await asyncio.to_thread(lambda: 2) == 2
    assert not stuck.done()
    never.set()
    assert await stuck


async def test_it_keeps_its_place_until_it_returns(never: threading.Event) -> None:
    own = OwnThreads("stuck", 1)
    stuck = asyncio.create_task(own.run(never.wait))
    await asyncio.sleep(0)
    stuck.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stuck
    waiting = asyncio.create_task(own.run(lambda: 1))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()

    never.set()

    assert await waiting == 1


async def test_an_error_is_the_caller_s() -> None:
    def fail() -> None:
        raise OSError("of the disk")

    own = OwnThreads("fails", 1)
    for _ in range(2):
        with pytest.raises(OSError, match="of the disk"):
            await own.run(fail)


async def test_uses_of_one_key_take_turns_and_unused_locks_vanish() -> None:
    locks, steps = KeyedLocks(), list[str]()

    async def use(key: str) -> None:
        async with locks.of(key):
            steps.append(f"{key} begins")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            steps.append(f"{key} ends")

    await asyncio.gather(use("a"), use("a"), use("b"))
    gc.collect()

    assert [step for step in steps if step[0] == "a"] == ["a begins", "a ends"] * 2
    assert steps.index("b begins") < steps.index("a ends")
    assert len(locks) == 0
