"""Processor time that a search may take: other work on the machine does not cut it short."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time

import torch


class Budget:
    """Bounds work by the CPU time of this process, of all threads together."""

    def __init__(
        self, seconds: float, clock: Callable[[], float] = process_time, threads: int = 0
    ) -> None:
        """``seconds`` are of each of ``threads`` that compute; 0: as many as torch uses."""
        self._clock, self._began = clock, clock()
        self._seconds = seconds * (threads or torch.get_num_threads())

    @property
    def spent(self) -> float:
        """Part of the time that has gone, at most 1."""
        return min(1.0, (self._clock() - self._began) / self._seconds)

    @property
    def is_left(self) -> bool:
        return self.spent < 1
