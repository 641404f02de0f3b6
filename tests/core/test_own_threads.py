"""A call that never returns takes a thread, and nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from braid.core.own_threads import OwnThreads


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
