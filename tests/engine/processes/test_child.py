"""Child processes: how they end, their time, what they inherit."""

import asyncio
import os
import resource
from math import inf
from time import process_time

import psutil
import pytest

from braid.core.child_process import child_environment
from braid.engine.link.options import LOST_EXIT_CODE, EndReason, WorkerEnd
from braid.engine.processes.child import TAIL_BYTES, ChildEnd, ChildProcess, Streams
from braid.engine.processes.child_time import (
    ROUNDS,
    DidNothing,
    TookTooLong,
    cpu_time_s,
    wait_for_child,
)
from braid.engine.processes.environment import cpu_environment, cuda_environment
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


ROUND_S = 0.001


class Child:
    """A process that computes for so long in each round, and answers at the end if it may."""

    def __init__(self, *rounds_s: float, answers: bool = False) -> None:
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._rounds = iter(rounds_s)
        self._answers = answers
        self._total_s = 0.0

    def cpu_time_s(self, pid: int) -> float:
        round_s = next(self._rounds, None)
        if round_s is None and self._answers and not self.answer.done():
            self.answer.set_result("at last")
        self._total_s += 0.01 if round_s is None else round_s
        return self._total_s

    async def wait(self, cpu_seconds: float) -> None:
        await wait_for_child(
            self.answer, 1, ROUND_S, cpu_seconds=cpu_seconds, cpu_time_s=self.cpu_time_s
        )


async def test_a_child_that_gets_on_slowly_may_take_longer_than_its_limit() -> None:
    child = Child(*[0.01] * 5, answers=True)

    await child.wait(cpu_seconds=1.0)

    assert child.answer.result() == "at last"


async def test_a_child_that_used_its_share_is_told_from_one_that_got_none() -> None:
    with pytest.raises(TookTooLong):
        await Child(0.0, 0.95).wait(cpu_seconds=1.0)
    with pytest.raises(DidNothing):
        await Child(0.0, 0.2, 0.0).wait(cpu_seconds=1.0)


async def test_no_child_is_waited_for_without_end() -> None:
    with pytest.raises(TookTooLong):
        await Child(*[0.01] * (ROUNDS + 1)).wait(cpu_seconds=inf)


def test_the_time_of_a_process_is_that_of_all_its_threads() -> None:
    assert cpu_time_s(os.getpid()) == pytest.approx(process_time(), abs=0.5)
    assert cpu_time_s((1 << 22) + 1) == 0.0, "no process has this number"


@pytest.mark.parametrize(
    ("visible", "gpu", "chosen"),
    [
        (None, 0, "0"),
        (None, 3, "3"),
        ("2,5", 1, "5"),
        ("GPU-aa, GPU-bb", 1, "GPU-bb"),
        ("2,5", 2, "-1"),
        ("", 0, ""),
    ],
)
def test_a_worker_sees_one_gpu_of_those_that_the_server_sees(
    visible: str | None, gpu: int, chosen: str
) -> None:
    ours = {"PATH": "/bin"} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}

    assert cuda_environment(gpu, ours)["CUDA_VISIBLE_DEVICES"] == chosen


def test_threads_of_openmp_spin_briefly_and_not_where_a_quota_would_pay_for_it() -> None:
    assert cpu_environment({}, spins=True)["GOMP_SPINCOUNT"] == "10000"
    assert cpu_environment({}, spins=False)["GOMP_SPINCOUNT"] == "0"


def test_graphs_get_32_connections_unless_the_operator_said_otherwise() -> None:
    assert cuda_environment(0, {})["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"
    told = cuda_environment(0, {"CUDA_DEVICE_MAX_CONNECTIONS": "8"})
    assert told["CUDA_DEVICE_MAX_CONNECTIONS"] == "8"


def test_the_end_of_a_worker_says_why() -> None:
    lost = WorkerEnd.of(ChildEnd(LOST_EXIT_CODE), "the GPU failed: an illegal memory access")
    assert lost.reason is EndReason.DEVICE_LOST
    assert "an illegal memory access" in lost.text
    assert WorkerEnd.of(ChildEnd(-9), "") == WorkerEnd(EndReason.KILLED, "it was killed by SIGKILL")
    assert WorkerEnd.of(ChildEnd(1), "").reason is EndReason.EXITED
