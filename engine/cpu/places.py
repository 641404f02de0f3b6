"""Places of a CPU: equal parts of its threads, on which runs go side by side.

    4 threads, 2 places:   place 0: core 0, core 1 │ place 1: core 2, core 3

Two runs on one thread each wait for each other at no operator, so together they compute more than
one run after the other on both threads; each by itself takes longer. A place has a leading thread
with a pinned team and activation memory of its own. It runs programs that are bound for it alone:
a primitive has one caller at a time (engine/onednn/library.py). Packed weights are shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from braid.engine.cpu.executor import CpuExecutor
from braid.engine.device import Backend
from braid.engine.runtime.threads import PinnedTeam


class CpuPlace:
    """A ``DevicePart`` with a ``CpuExecutor`` of its own; used by one thread."""

    def __init__(
        self, span: range, cpus: Sequence[int], backend_of: Callable[[CpuExecutor], Backend]
    ) -> None:
        self.span = span
        self._team = PinnedTeam(f"place-{span.start}+{len(span)}", len(span), ())
        self._has_begun = False
        executors: list[CpuExecutor] = []
        self.start(lambda: executors.append(CpuExecutor(len(span), cpus)))
        self.join()
        self._executor = executors[0]
        self.backend = backend_of(self._executor)

    def start(self, work: Callable[[], None]) -> None:
        """Begin ``work`` on the leading thread; waits for the work before it."""
        self.join()
        self._has_begun = True
        self._team.start(work)

    def close(self) -> None:
        self.join()
        self._team.close()
        self._executor.close()

    def join(self) -> None:
        """Wait for the work that was begun last, and raise what it raised."""
        if self._has_begun:
            self._has_begun = False
            if (error := self._team.join()) is not None:
                raise error


def divided(
    executor: CpuExecutor, count: int, backend_of: Callable[[CpuExecutor], Backend]
) -> list[CpuPlace]:
    """Places that share the threads and cores of ``executor``, of which ``count`` is a divisor."""
    spans = spans_of(executor.threads, count)
    return [CpuPlace(span, executor.cpus[span.start : span.stop], backend_of) for span in spans]


def spans_of(threads: int, count: int) -> list[range]:
    """Threads of each place: they follow one another, as those of a group of near cores do."""
    size = threads // count
    return [range(first, first + size) for first in range(0, threads, size)]
