"""Time as the batcher sees it, a seam for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Protocol


class Handle(Protocol):
    """Handle of a callback to come, which may be cancelled."""

    def cancel(self) -> None:
        ...


class Clock(Protocol):
    """Time, in seconds from an arbitrary moment, and callbacks."""

    def now(self) -> float:
        """Return the time that deadlines refer to."""

    def call_at(self, when: float, callback: Callable[[], object]) -> Handle:
        """Call back at ``when``, or soon if that is past."""


class MonotonicClock:
    """``time.monotonic`` and the running event loop."""

    now = staticmethod(monotonic)

    def call_at(self, when: float, callback: Callable[[], object]) -> Handle:
        return asyncio.get_running_loop().call_later(max(0.0, when - monotonic()), callback)
