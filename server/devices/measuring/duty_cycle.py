"""Turns for a bench, however busy its device is.

A bench runs where requests leave cores to it (server/devices/measuring/process.py). If they
leave none, its threads still get a share of each core, but at different moments, and wait for each
other: what they measure then is mostly that. So while something is measured, a device that was
hardly idle in a while gets nothing to do for a moment, in which the bench has all cores at once.

    runs ... runs │ turn │ runs ... runs │ turn │ runs ...       idle for a while: no turn
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

TURN_S = 0.02
BETWEEN_S = 0.2  # so a tenth of the time at most
IDLE_S = 0.02  # between two turns; a device that was idle that long by itself owes none ...
LEAST_GAP_S = 0.005  # ... in gaps in which something could be measured


class Turns:
    """Holds back the runs of one device now and then. Belongs to the event loop."""

    def __init__(
        self,
        is_measuring: Callable[[], bool],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._is_measuring = is_measuring
        self._clock = clock
        self._running = 0
        self._ended = asyncio.Event()  # the last run that was under way
        self._turn = asyncio.Lock()
        self._since = self._free_at = clock()
        self._idle_s = 0.0

    async def before_run(self) -> None:
        """Wait for a bench's turn to be over, if it is time for one."""
        async with self._turn:
            self._count_idle()
            if self._clock() - self._since >= BETWEEN_S:
                if self._is_measuring() and self._idle_s < IDLE_S:
                    while self._running:
                        self._ended.clear()
                        await self._ended.wait()
                    await asyncio.sleep(TURN_S)
                self._since, self._idle_s = self._clock(), 0.0
            self._running += 1

    def after_run(self) -> None:
        """A run is over, well or not."""
        self._running -= 1
        if not self._running:
            self._free_at = self._clock()
            self._ended.set()

    def _count_idle(self) -> None:
        if not self._running:
            gap_s = self._clock() - self._free_at
            self._idle_s += gap_s if gap_s >= LEAST_GAP_S else 0.0
