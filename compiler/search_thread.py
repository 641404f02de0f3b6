"""A search in a thread of the process that measures: it stands still while something is measured.

The device thread goes on answering its link while the search computes. Limits of time and memory
hold for the search alone: CPU seconds of its thread from one question to the next, and what the
process has grown by while it computed.
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Self

from braid.compiler.planner import PlanningFailed
from braid.compiler.planner_messages import StageQuery
from braid.compiler.planning import AskLatencies
from braid.core.errors import BraidError
from braid.scheduler.planners import Planned

log = logging.getLogger("braid.planner")

TICK_S = 0.02
"""Time after which the device thread looks at its link while a search computes."""

END_SECONDS = 1.0
"""Time that the end of a search is waited for; it ends between two bytecodes."""

STOP_AGAIN_S = 0.1
"""Time after which a thread that goes on is stopped once more."""

OUT_OF_MEMORY = (
    "the planner ran out of memory; lower its limits r and s, or raise on the server "
    "BRAID_MEMORY_BYTES"
)
TOO_LONG = (
    "the planner searched for more than {:g} s; lower its limits r and s, or raise "
    "BRAID_PLANNER_SEARCH_SECONDS on the server"
)
CRASHED = "the planner crashed; the log of the process that measures has the details"

Question = Sequence[StageQuery]
Search = Callable[[AskLatencies], Sequence[Planned]]


@dataclass(frozen=True, slots=True)
class _Plans:
    planned: Sequence[Planned]


class _Stopped(SystemExit):
    """Raised in the thread of a search that nobody waits for any more.

    A SystemExit, as ``threading`` says nothing of one that reaches the end of a thread.
    """


class SearchThread:
    """One search. Belongs to the device thread, but for ``_run`` and ``_ask``."""

    def __init__(
        self, search: Search, memory_bytes: int, seconds: float, cores: Collection[int] = ()
    ) -> None:
        """Start the search.

        Args:
            search: given a function that answers its questions; returns plans.
            memory_bytes: that the process may grow by while it computes.
            seconds: CPU time from one question to the next, or to the plans.
            cores: that the search may run on; none: those of the calling thread, which has one.
        """
        self._search = search
        self._memory_bytes = memory_bytes
        self._seconds = seconds
        self._cores = cores
        self._told: SimpleQueue[Question | _Plans | BraidError] = SimpleQueue()
        self._answers: SimpleQueue[Sequence[float] | None] = SimpleQueue()
        self._ending = threading.Lock()  # held to stop the thread, and by it to come to its end
        self._is_searching = True
        self._clock: int | None = None  # of the thread's CPU time
        self._began_s = 0.0  # by that clock, when it last began to compute
        self._size_bytes = _allocated_bytes()  # at that time
        self._grown_bytes = 0  # while it computed before
        self.plans: Sequence[Planned] | None = None
        self._thread = threading.Thread(target=self._run, name="search", daemon=True)
        self._thread.start()

    def next_question(self) -> Question | None:
        """Wait for the next question for a moment; None: the search computes on, or has ended.

        Raises BraidError: there is no plan, and why; a limit was reached.
        """
        try:
            event = self._told.get(timeout=TICK_S)
        except Empty:
            self._check_limits()
            return None
        if isinstance(event, BraidError):
            raise event
        if isinstance(event, _Plans):
            self.plans = event.planned
            return None
        self._grown_bytes += _allocated_bytes() - self._size_bytes
        return event

    def answer(self, latencies_us: Sequence[float]) -> None:
        """Answer the latest question; the search computes on."""
        self._began_s, self._size_bytes = self._cpu_s(), _allocated_bytes()
        self._answers.put(latencies_us)

    def close(self) -> None:
        """End the thread, whatever it does."""
        self._answers.put(None)
        until = time.monotonic() + END_SECONDS
        with _lost_stops():
            while self._thread.is_alive() and time.monotonic() < until:
                self._stop()
                self._thread.join(STOP_AGAIN_S)

    def _stop(self) -> None:
        """Raise in the thread; finalisers and callbacks of weak references swallow that."""
        with self._ending:
            if self._is_searching and self._thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread.ident), ctypes.py_object(_Stopped)
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _check_limits(self) -> None:
        if self._cpu_s() - self._began_s > self._seconds:
            raise PlanningFailed(TOO_LONG.format(self._seconds))
        if self._grown_bytes + _allocated_bytes() - self._size_bytes > self._memory_bytes:
            raise PlanningFailed(OUT_OF_MEMORY)

    def _cpu_s(self) -> float:
        if self._clock is None:
            return 0.0
        try:
            return time.clock_gettime(self._clock)
        except OSError:  # it has ended
            return 0.0

    # -- the thread of the search --------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._tell_outcome()
        except _Stopped:  # at whatever it did
            self._is_searching = False

    def _tell_outcome(self) -> None:
        if self._cores:
            os.sched_setaffinity(0, self._cores)
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        try:
            self._told.put(_Plans(self._find_plans()))
        except BraidError as error:
            self._told.put(PlanningFailed(str(error)))
        except MemoryError:
            self._told.put(PlanningFailed(f"{OUT_OF_MEMORY}, or BRAID_WORKER_MEMORY_BYTES"))
        except Exception:
            log.exception("planner crashed")
            self._told.put(PlanningFailed(CRASHED))

    def _find_plans(self) -> Sequence[Planned]:
        try:
            return tuple(self._search(self._ask))
        finally:  # a stop at what follows could leave the lock of a log or a queue taken
            with self._ending:
                self._is_searching = False

    def _ask(self, queries: Question) -> Sequence[float]:
        self._told.put(queries)
        latencies_us = self._answers.get()
        if latencies_us is None:
            raise _Stopped
        return latencies_us


@contextmanager
def _lost_stops() -> Iterator[None]:
    """Let the interpreter report no ``_Stopped`` that a finaliser swallowed."""
    report = sys.unraisablehook

    def unless_stopped(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is not _Stopped:
            report(unraisable)

    sys.unraisablehook = unless_stopped
    try:
        yield
    finally:
        sys.unraisablehook = report


def _allocated_bytes() -> int:
    """Memory of this process that no file stands behind."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * resource.getpagesize()
