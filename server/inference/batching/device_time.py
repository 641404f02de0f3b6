"""What is sent to a device, and when each part of it will have done that.

Batches begin in the order in which they were sent. One that is to run beside others takes its part
of the device's threads, any other one all of them, and waits until they are free:

    2 parts     │ beside A ──── │ beside C ──────── │
                │ beside B ───────── │ (waits)      │ D, on all threads ── │

One that waits for its executable takes none of the device from other models until that is prepared.
"""

from collections.abc import Callable, Collection
from math import lcm

from braid.server.inference.batching.queues import Batch, ModelQueue

IN_FLIGHT = 2
"""Batches sent to each part of a device at once: one runs, the next is already there."""


_ROUNDING = 1e-9
"""Error of a sum of parts."""


class DeviceTime:
    """Batches in flight on one device. Belongs to the event loop."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._began: dict[Batch, float | None] = {}  # in order; None: the part is not free yet
        self._waiting: set[Batch] = set()  # for their executables

    def sent(self, batch: Batch) -> None:
        if not self._began:
            self._began[batch] = self._now()
            return
        self._began[batch] = None
        self._begin()

    def waits(self, batch: Batch, *, is_waiting: bool) -> None:
        """Take note that a batch waits for its executable, or that it is sent after all."""
        if is_waiting and batch in self._began:
            self._waiting.add(batch)
            self._began[batch] = self._now()
            self._begin()
        elif not is_waiting and batch in self._waiting:
            self._waiting.discard(batch)
            del self._began[batch]
            self.sent(batch)

    def ended(self, batch: Batch) -> None:
        del self._began[batch]
        if self._began:
            self._begin()

    @property
    def is_busy(self) -> bool:
        return len(self._began) > len(self._waiting)

    def is_busy_for(self, queue: ModelQueue) -> bool:
        """True if there are, or batches of a queue wait for their executables."""
        return bool(self._of(queue))

    def is_full(self, queue: ModelQueue) -> bool:
        """Return whether a queue may send no batch now, not even on the smallest part."""
        return self._used(queue) >= IN_FLIGHT - _ROUNDING

    def takes(self, beside: int, queue: ModelQueue) -> bool:
        return self._used(queue) + 1 / beside <= IN_FLIGHT + _ROUNDING

    def is_free(self, beside: int, queue: ModelQueue) -> bool:
        return not self._began or self._used(queue) + 1 / beside <= 1 + _ROUNDING

    def free_at(self, beside: int, queue: ModelQueue) -> float:
        """Return the time at which one of ``beside`` batches side by side could begin."""
        free, _ = self._free(beside, self._of(queue))
        return max(self._now(), free[len(free) // beside - 1])

    def free_s(self, queue: ModelQueue) -> list[float]:
        """Return the seconds until each of the device's equal parts is free, ascending."""
        free, now = self._free(1, self._of(queue))
        return [max(0.0, end - now) for end in free]

    def left_s(self) -> float:
        """Return the expected seconds of all threads for what was sent, or waits to be."""
        if not self._began:
            return 0.0
        free, now = self._free(1, self._began)
        return sum(max(0.0, end - now) for end in free) / len(free)

    def _of(self, queue: ModelQueue) -> list[Batch]:
        """Return what counts for a queue: what the device has, and what waits of its own."""
        waiting = self._waiting
        return [batch for batch in self._began if batch not in waiting or batch.queue is queue]

    def _used(self, queue: ModelQueue) -> float:
        return sum(1 / batch.beside for batch in self._of(queue))

    def _begin(self) -> None:
        """Note which batches have begun, as parts of the device have become free."""
        used = 0.0
        for batch, began in self._began.items():
            if batch in self._waiting:
                continue
            used += 1 / batch.beside
            if used > 1 + _ROUNDING:
                break
            if began is None:
                self._began[batch] = self._now()

    def _free(self, beside: int, batches: Collection[Batch]) -> tuple[list[float], float]:
        """Return when each of the equal parts is free, in order, and the present time."""
        now = self._now()
        free = [now] * lcm(beside, *(batch.beside for batch in batches))
        for batch in batches:
            began = self._began[batch]
            parts = len(free) // batch.beside
            begins = free[parts - 1] if began is None else began
            free[:parts] = [max(now, begins + batch.expected_s)] * parts
            free.sort()
        return free, now
