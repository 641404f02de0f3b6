"""How a child process ends, and what it leaves: its last output, and no process."""

from __future__ import annotations

import asyncio
import os
import resource

import psutil
import pytest

from braid.core.child_process import child_environment
from braid.engine.processes.child import (
    TAIL_BYTES,
    ChildEnd,
    ChildProcess,
    Streams,
)
from tests.clock import until

DESCRIPTORS_OF_A_START = 5
"""As many as any start takes: a pair for its output, one for its stdin, a pair for its report."""

STUBBORN = "tests.engine.processes.stubborn"


async def started(*arguments: str, streams: Streams = Streams.KEPT) -> ChildProcess:
    return await ChildProcess.start(
        STUBBORN, *arguments, environment=child_environment(), streams=streams
    )


async def printed(child: ChildProcess) -> None:
    """Wait until it has started its own child, which its command line does not name."""
    async with asyncio.timeout(120):
        while not psutil.Process(child.pid).children():  # noqa: ASYNC110  (it has no event)
            await asyncio.sleep(0.01)


async def test_a_child_that_ignores_sigterm_is_killed_with_what_it_started() -> None:
    child = await started("stays")
    await printed(child)
    group = psutil.Process(child.pid).children()

    end = await child.end(grace_s=0.1)

    assert (end.status, end.signal_name) == (-9, "SIGKILL")
    assert not child.is_alive
    _, alive = psutil.wait_procs(group, timeout=60)
    assert not alive


async def test_a_crash_kills_what_the_child_started_and_its_last_output_is_kept() -> None:
    child = await started("told", streams=Streams.KEPT)
    async with asyncio.timeout(120):
        while child.is_alive:  # noqa: ASYNC110  (its output is held open)
            await asyncio.sleep(0.01)

    end = await child.end()

    assert end.text == "it was killed by SIGSEGV"
    assert len(end.output) == TAIL_BYTES
    last = end.output.rpartition("noise\n")[2]
    assert "['told']" in last
    until(lambda: _has_ended(int(last.split()[-1])))  # the kernel kills it in its own time


def _has_ended(pid: int) -> bool:
    """Whether a process is gone, or waits for init to collect it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_a_cancelled_caller_leaves_no_child() -> None:
    child = await started("stays")
    await printed(child)

    async def use() -> None:
        async with child:
            await asyncio.sleep(600)

    using = asyncio.create_task(use())
    await asyncio.sleep(0)
    using.cancel()
    await asyncio.sleep(0)
    using.cancel()  # while it waits for the child's end
    with pytest.raises(asyncio.CancelledError):
        await using

    assert not child.is_alive


@pytest.mark.parametrize("streams", Streams)
@pytest.mark.parametrize("left", range(DESCRIPTORS_OF_A_START))
async def test_a_start_without_enough_descriptors_loses_none(streams: Streams, left: int) -> None:
    await (await started("stays")).end()  # the fork server runs by now
    before, limit = _descriptors(), resource.getrlimit(resource.RLIMIT_NOFILE)
    free = sorted(set(range(max(before) + left + 2)) - before)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[left], limit[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            await (await started("stays", streams=streams)).end()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    await asyncio.sleep(0)

    assert _descriptors() == before


def _descriptors() -> set[int]:
    """Open descriptors of this process."""
    with os.scandir("/proc/self/fd") as entries:
        found = {int(entry.name) for entry in entries}
    return {each for each in found if os.path.exists(f"/proc/self/fd/{each}")}


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (ChildEnd(3), "it ended with exit code 3"),
        (ChildEnd(-9), "it was killed by SIGKILL"),
        (ChildEnd(-9, was_memory_short=True), "it was killed by SIGKILL for want of memory"),
        (ChildEnd(-15, was_memory_short=True), "it was killed by SIGTERM"),
        (ChildEnd(-200), "it was killed by signal 200"),
    ],
)
def test_an_end_is_said_in_words(end: ChildEnd, text: str) -> None:
    assert end.text == text
