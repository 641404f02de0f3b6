"""Runs that go on side by side on places of the device, beside the loop's thread.

    loop ──begin──> a free place ──work: run, answer──> freed: the descriptor can be read
                                                             └──> the loop looks what else may begin

A run on all of the device and runs on places exclude each other; so do places that share threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from braid.engine.device import DevicePart
from braid.engine.worker.models import ReadyExecutable


class SideRuns:
    """Places of the device on which runs are under way. Begun by one thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: list[DevicePart] = []
        self.freed = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Can be read when a place has become free since ``seen`` was called."""

    def __del__(self) -> None:
        os.close(self.freed)

    @property
    def any(self) -> bool:
        """Whether a run is under way."""
        return bool(self._busy)

    def free_copy(self, copies: Sequence[ReadyExecutable]) -> ReadyExecutable | None:
        """An executable whose place is free; None: no place is."""
        with self._lock:
            busy = {thread for place in self._busy for thread in place.span}
        return next((each for each in copies if busy.isdisjoint(_place(each).span)), None)

    def begin(self, ready: ReadyExecutable, work: Callable[[], None]) -> None:
        """Do ``work``, which raises nothing, on the free place of an executable."""
        place = _place(ready)

        def run() -> None:
            try:
                work()
            finally:
                with self._lock:
                    self._busy.remove(place)
                os.eventfd_write(self.freed, 1)

        with self._lock:
            self._busy.append(place)
        place.start(run)

    def seen(self) -> None:
        """Forget that places have become free."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.freed)


def _place(ready: ReadyExecutable) -> DevicePart:
    assert ready.place is not None, "it runs on all of the device"
    return ready.place
