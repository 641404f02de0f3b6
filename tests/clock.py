"""Time in tests: a clock that is set, and waiting for what another process does."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

LOOK_EVERY_S = 0.02


@dataclass
class SetClock:
    """A clock that shows the seconds it was set to."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def until(look: Callable[[], T], seconds: float = 120.0, why: Callable[[], object] = str) -> T:
    """Return the first true answer of ``look``; fail after ``seconds`` and say what ``why`` does.

    The limit is for what never comes true, not for how fast it does.
    """
    deadline = time.monotonic() + seconds
    while not (answer := look()):
        assert time.monotonic() < deadline, f"not within {seconds} s; {why()}"
        time.sleep(LOOK_EVERY_S)
    return answer


async def until_true(look: Callable[[], object], seconds: float = 120.0) -> None:
    """As ``until``, of what tasks of this process bring about."""
    async with asyncio.timeout(seconds):
        while not look():  # noqa: ASYNC110  (it has no event)
            await asyncio.sleep(0.001)
