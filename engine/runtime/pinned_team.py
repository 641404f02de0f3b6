"""Threads with pinned OpenMP teams of their own, for work beside the device's thread.

States of a team: waiting (on a queue) ──work──> running ──done──> waiting; or closed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

import torch

from braid.engine.runtime.affinity import make_pinned_team
from braid.engine.runtime.stopping import StopSignal, stop_signal

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
        """Wait for the work; returns what it raised."""
        return self._done.get()

    def close(self) -> None:
        self._work.put(None)
        self._thread.join()

    @torch.inference_mode()
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
