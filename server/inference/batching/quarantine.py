"""Model versions whose runs held a device up again and again: refused for a while, by name.

    strikes: 1 ── 2 ── 3 within ten minutes ──> refused for five ──> counted anew

A strike is a run that was ended since it took too long, with its worker or without. What ends at
its caller's deadline, when it is told to, is none. Requests that wait already are refused, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic

from braid.core.errors import ModelQuarantined

STRIKES = 3
WITHIN_S = 600.0
REFUSED_S = 300.0

Version = tuple[str, int]
"""A model's name and the number of a version."""


class Quarantine:
    """Counts for all devices of a server, by the monotonic clock."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._strikes: dict[Version, deque[float]] = {}
        self._refused_until: dict[Version, float] = {}

    def strike(self, name: str, version: int) -> bool:
        """A run of this version took too long; returns whether it is refused from now on."""
        now = self._clock()
        strikes = self._strikes.setdefault((name, version), deque(maxlen=STRIKES))
        strikes.append(now)
        if len(strikes) < STRIKES or now - strikes[0] > WITHIN_S:
            return False
        del self._strikes[name, version]
        self._refused_until[name, version] = now + REFUSED_S
        return True

    def check(self, name: str, version: int) -> None:
        """Raise ModelQuarantined while this version is refused."""
        until = self._refused_until.get((name, version))
        if until is None:
            return
        left_s = until - self._clock()
        if left_s <= 0:
            del self._refused_until[name, version]
            return
        raise ModelQuarantined(
            f"version {version} of {name!r} held its device up {STRIKES} times and is refused for "
            f"{left_s:.0f} s more, so that other models go on; send it inputs that it ends on, or "
            "register a version that always ends"
        )

    def forget(self, name: str, version: int) -> None:
        """The version is gone."""
        self._strikes.pop((name, version), None)
        self._refused_until.pop((name, version), None)
