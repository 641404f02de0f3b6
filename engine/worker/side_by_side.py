"""Runs that go on side by side on places of the device, beside the loop's thread.

    loop ──begin──> a free place ──work: run, answer──> the next of the queue, else free ──> loop
             └──none is free──> queue                                 (the descriptor can be read)

A place takes its next run from the queue by itself: the loop's thread shares a core with one of the
places, and would have to wait for it. A run on all of the device and runs on places exclude each
other; so do places that share threads.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from braid.core.descriptors import Descriptor
from braid.engine.device import DevicePart

Work = Callable[[], None]


class OnPlace(Protocol):
    """What a run needs: it is ready on one place."""

    @property
    def place(self) -> DevicePart | None: ...


Copy = TypeVar("Copy", bound=OnPlace)


class _Queued(NamedTuple):
    """A run that waits for one of its places."""

    copies: Sequence[OnPlace]
    work_of: Callable[[Any], Work]  # of one of them


class SideRuns:
    """Runs under way on places, and runs that wait for one, in order; one thread begins them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: list[DevicePart] = []
        self._queue: deque[_Queued] = deque()
        self.freed = Descriptor(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        """Can be read when a place has become free since ``seen`` was called."""

    @property
    def any(self) -> bool:
        return bool(self._busy or self._queue)

    def begin(self, copies: Sequence[Copy], work_of: Callable[[Copy], Work]) -> None:
        """Do the work of one of ``copies``, which raises nothing, as soon as its place is free."""
        with self._lock:
            self._queue.append(_Queued(copies, work_of))
        self.begin_waiting()

    def begin_waiting(self) -> None:
        """Begin the runs that wait, in order, as far as places are free."""
        while True:
            with self._lock:
                if not self._queue or (free := self._free_copy(self._queue[0].copies)) is None:
                    return
                queued, place = self._queue.popleft(), _place(free)
                self._busy.append(place)
            place.start(partial(self._run, place, queued.work_of(free)))

    def seen(self) -> None:
        """Forget that places have become free."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.freed.fileno())

    def _free_copy(self, copies: Sequence[OnPlace]) -> OnPlace | None:
        """Find a copy whose place is free; None: no place is."""
        busy = {thread for place in self._busy for thread in place.span}
        return next((copy for copy in copies if busy.isdisjoint(_place(copy).span)), None)

    def _run(self, place: DevicePart, work: Work) -> None:
        """Do ``work`` on a place, and then what waits for that place."""
        following: Work | None = work
        try:
            while following is not None:
                following()
                following = self._following(place)
        except BaseException:
            with self._lock:
                self._busy.remove(place)
            raise
        finally:
            os.eventfd_write(self.freed.fileno(), 1)

    def _following(self, place: DevicePart) -> Work | None:
        """Take the next run if it can go on at a place that is done; else the place is free."""
        with self._lock:
            copies = self._queue[0].copies if self._queue else ()
            ready = next((copy for copy in copies if copy.place is place), None)
            if ready is None:
                self._busy.remove(place)
                return None
            queued = self._queue.popleft()
        return queued.work_of(ready)


def _place(ready: OnPlace) -> DevicePart:
    assert ready.place is not None, "it runs on all of the device"
    return ready.place
