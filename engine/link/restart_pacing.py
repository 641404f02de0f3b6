"""Pauses before a worker is started again."""

from __future__ import annotations

STABLE_SECONDS = 10.0
"""A worker that lived this long is replaced at once, whatever became of those before."""


class RestartPacing:
    """Keeps the starts of workers that end soon apart: further with each, up to ``longest_s``.

    The time for which a worker lived counts, so one that served for a while is replaced at once.
    """

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._apart_s = 0.0  # from one start to the next

    def pause_s(self, lived_s: float) -> float:
        """Seconds to wait after a worker that ended ``lived_s`` seconds after its start began."""
        if lived_s > STABLE_SECONDS:
            self._apart_s = 0.0
        pause_s = max(0.0, self._apart_s - lived_s)
        self._apart_s = min(self._longest_s, 2 * self._apart_s + 0.1)
        return pause_s
