"""How requests and what is measured share a device's cores.

A measuring process runs where requests leave cores to it (compiler/bench.py). If
they leave none, its threads still get a share of each core, but at different moments, and wait for
each other: what they measure then is mostly that. So while something is measured, a device that was
hardly idle for ``BETWEEN_S`` runs nothing for ``PAUSE_S``, in which the measuring process has all
cores at once.

    runs ... runs │ pause │ runs ... runs │ pause │ runs ...     idle for ``IDLE_S``: no pause
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

from braid.compiler.bench import MeasuringHost

PAUSE_S = 0.02
BETWEEN_S = 0.2  # between two pauses, which so take a tenth of the time at most
IDLE_S = 0.02  # a device that was idle this long between two pauses owes none ...
LEAST_GAP_S = 0.005  # ... counting gaps in which something could be measured


class DutyCycle:
    """Delays runs of one device: pauses take a tenth of its time. Belongs to the event loop."""

    def __init__(
        self,
        bench: MeasuringHost,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._bench = bench
        self._clock = clock
        self._sleep = sleep
        self._running = 0
        self._ended = asyncio.Event()  # set when no run is under way
        self._beginning = asyncio.Lock()
        self._since = self._free_at = clock()
        self._idle_s = 0.0

    async def before_run(self) -> None:
        """Wait until a run may begin; if a pause is due, that is after it."""
        if self.begin_now():
            return
        async with self._beginning:
            now = self._clock()
            self._count_idle(now)
            if now - self._since >= BETWEEN_S:
                if self._bench.is_measuring and self._idle_s < IDLE_S:
                    while self._running:
                        self._ended.clear()
                        await self._ended.wait()
                    await self._sleep(PAUSE_S)
                self._since, self._idle_s = self._clock(), 0.0
            self._running += 1

    def begin_now(self) -> bool:
        """Begin a run at once; False: it did not, as something is measured."""
        if self._bench.is_measuring or self._beginning.locked():
            return False
        now = self._clock()
        self._count_idle(now)
        if now - self._since >= BETWEEN_S:
            self._since, self._idle_s = now, 0.0
        self._running += 1
        return True

    def after_run(self) -> None:
        """Count the end of a run, failed or not."""
        self._running -= 1
        if not self._running:
            self._free_at = self._clock()
            self._ended.set()

    def _count_idle(self, now: float) -> None:
        if not self._running:
            gap_s = now - self._free_at
            self._idle_s += gap_s if gap_s >= LEAST_GAP_S else 0.0
