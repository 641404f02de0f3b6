"""Event loop whose time passes only while nothing is left to do.

What the loop would wait for on a real clock, it skips: programs of asyncio run unchanged, as fast
as they compute, and in the same order each time.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from braid.server.inference.batching.batcher import Handle

T = TypeVar("T")


class _SkippingSelector(selectors.SelectSelector):
    """Waits for nothing but time, and for that by changing the clock."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("a simulated program waits for something that never happens")
        self.now_s += max(0.0, timeout)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Event loop on virtual time, which begins at 0 seconds."""

    def __init__(self) -> None:
        self._skipping = _SkippingSelector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now_s


class LoopClock:
    """Clock of the running event loop, as a batcher takes it."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def call_at(self, when: float, callback: Callable[[], object]) -> Handle:
        return asyncio.get_running_loop().call_at(when, callback)


def run(program: Coroutine[Any, Any, T]) -> T:
    """Run a program on virtual time from 0 on and return its result."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(program)
