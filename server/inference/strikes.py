"""Refusal of a model version whose runs held a device up, or ended its worker, again and again.

    strikes: 1 ── 2 ── 3 within ten minutes ──> refused for five ──> counted anew

A strike is a run that was ended since it took too long, with its worker or without, or in which the
worker crashed (not one that was killed). What ends at its caller's deadline, when it is told to, is
none. Requests that wait already are refused, too.
"""

from collections import deque
from collections.abc import Callable
from time import monotonic

from braid.core.errors import ModelQuarantined

STRIKES = 3
WITHIN_S = 600.0
REFUSED_S = 300.0


class Strikes:
    """Strikes of one version on all devices of a server, by the monotonic clock."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._struck_at: deque[float] = deque(maxlen=STRIKES)
        self._refused_until = 0.0

    def add(self) -> bool:
        """Count a run that took too long or crashed; True: the version is refused from now on."""
        now = self._clock()
        self._struck_at.append(now)
        if len(self._struck_at) < STRIKES or now - self._struck_at[0] > WITHIN_S:
            return False
        self._struck_at.clear()
        self._refused_until = now + REFUSED_S
        return True

    def check(self, name: str, version: int) -> None:
        """Raise ModelQuarantined while the version, which has this name and number, is refused."""
        if self._refused_until and (left_s := self._refused_until - self._clock()) > 0:
            raise ModelQuarantined(
                f"version {version} of {name!r} held its device up {STRIKES} times, or ended its "
                f"worker, and is refused for {left_s:.0f} s more; send it inputs that it ends on, "
                "or register a version that always ends"
            )
