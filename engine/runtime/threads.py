"""Threads of a device, pinned to cores: OpenMP teams, threads that lead one, work without a team.

Left to the kernel, two threads of one OpenMP team can end up on one core while another process
uses the other: then each waits out its whole spin while the other one cannot run, and a 3 ms
model takes 30 to 400 ms (docs/decisions/0007-pinned-threads.md). So every thread is pinned.
OpenMP threads cannot be asked to pin themselves from Python: a team is made by running an
operator large enough for all its threads, and the threads that appeared are pinned from outside.

A team's other threads spin when their part is done, in case there is more: after the last operator
of a request that is most of a millisecond on a core which the front end wants. Seen on a 2-core AMD
EPYC virtual machine: to copy a tensor of 600 KB takes 5 us with two threads, 10 us with one, and
440 and 50 us of CPU. So small work is done on the calling thread alone.

States of a ``PinnedTeam``: waiting (on a queue) ──work──> running ──done──> waiting; or closed.
"""

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from queue import SimpleQueue

import torch

from braid.engine.runtime.stopping import StopSignal, stop_signal

for_inference = torch.inference_mode  # of all that a thread does, as a decorator
team_threads = torch.get_num_threads  # of the calling thread

_SPREAD_ELEMENTS = 1 << 16  # for each thread: an elementwise operator of this size uses all


def usable_cpus() -> tuple[int, ...]:
    return tuple(sorted(os.sched_getaffinity(0)))


def make_pinned_team(cpus: Sequence[int]) -> None:
    """Give the calling thread an OpenMP team of ``len(cpus)`` threads, one on each core.

    It stays on ``cpus[0]``. Must be the first operator that this thread runs with more than one
    thread. A kernel that refuses to pin leaves threads where they are.
    """
    before = set(os.listdir("/proc/self/task"))
    torch.set_num_threads(len(cpus))
    torch.ones(_SPREAD_ELEMENTS * len(cpus)).add_(1)
    threads = sorted(map(int, set(os.listdir("/proc/self/task")) - before))
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {cpus[0]})
        for thread, cpu in zip(threads, cpus[1:], strict=False):
            os.sched_setaffinity(thread, {cpu})


def end_team() -> None:
    """The calling thread's next parallel region makes another team.

    libgomp counts the threads of all teams. Where they are more than the cores, even asleep, every
    team of the process sleeps at each barrier in place of spinning: MnasNet took 4.1 ms, not 1.8.
    """
    pause = _pause_openmp()
    if pause is not None:
        pause(1)  # omp_pause_soft; within a parallel region it changes nothing


@cache
def _pause_openmp() -> Callable[[int], int] | None:
    """``omp_pause_resource_all`` of the OpenMP that torch uses; None before OpenMP 5.0."""
    return getattr(ctypes.CDLL(torch._C.__file__), "omp_pause_resource_all", None)


SMALL_BYTES = 8 << 20  # that one thread moves in little time beside the rest of a request


@contextmanager
def on_one_thread(size_bytes: int) -> Iterator[None]:
    """Let torch use one thread in the block if it handles ``size_bytes`` bytes or fewer."""
    threads = torch.get_num_threads()
    if threads == 1 or size_bytes > SMALL_BYTES:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


Work = Callable[[], None]


class PinnedTeam:
    """A thread, the leader of an OpenMP team of fixed size, that does one work at a time."""

    def __init__(self, name: str, threads: int, cpus: Sequence[int]) -> None:
        """Start ``threads`` threads, each on its core of ``cpus``; empty leaves them unpinned."""
        self._work: SimpleQueue[tuple[Work, StopSignal | None] | None] = SimpleQueue()
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread = threading.Thread(
            target=self._loop, args=(threads, cpus), name=name, daemon=True
        )
        self._thread.start()
        self._done.get()  # its team is complete

    def start(self, work: Work) -> None:
        """Begin ``work``, which ends when the calling thread's run is to end."""
        self._work.put((work, stop_signal.get()))

    def join(self) -> BaseException | None:
        return self._done.get()

    def close(self) -> None:
        self._work.put(None)
        self._thread.join()

    @for_inference()
    def _loop(self, threads: int, cpus: Sequence[int]) -> None:
        torch.set_num_threads(threads)
        if len(cpus) > 1:
            make_pinned_team(cpus)
        elif cpus:
            os.sched_setaffinity(0, set(cpus))
        self._done.put(None)
        while (item := self._work.get()) is not None:
            work, signal = item
            stop_signal.set(signal)
            try:
                work()
            except BaseException as error:
                self._done.put(error)
            else:
                self._done.put(None)
            del item, work, signal  # with the tensors that the work holds
