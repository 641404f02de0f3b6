"""Clients that call a server without a pause, and how each call ended."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from braid_client import BraidError


class Load:
    """A thread for each of some calls, which it makes until told to stop; nothing is tried again.

    Counts how calls ended: OK, the name of a status, or another error in words.
    """

    def __init__(self, calls: Sequence[Callable[[], object]], pause_s: float = 0.0) -> None:
        """Begin; each thread pauses for ``pause_s`` after each call."""
        self._pause_s = pause_s
        self.outcomes: Counter[str] = Counter()
        self._stop = threading.Event()
        self._ended = threading.Condition()
        self._pool = ThreadPoolExecutor(len(calls))
        self._running = [self._pool.submit(self._loop, call) for call in calls]

    def _loop(self, call: Callable[[], object]) -> None:
        while not self._stop.wait(self._pause_s):
            outcome = "OK"
            try:
                call()
            except BraidError as error:
                outcome = error.code.name if error.code else repr(error)
            except Exception as error:
                outcome = repr(error)[:300]
            if outcome != "OK":
                self._stop.wait(0.01)
            with self._ended:
                self.outcomes[outcome] += 1
                self._ended.notify_all()

    def until(self, outcome: str, more: int = 1) -> None:
        """Wait until so many more calls than now have ended like this."""
        with self._ended:
            wanted = self.outcomes[outcome] + more
            have_ended = self._ended.wait_for(lambda: self.outcomes[outcome] >= wanted, 120)
            assert have_ended, self.outcomes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def stop(self) -> Counter[str]:
        """End all threads; returns how their calls ended."""
        self._stop.set()
        for running in self._running:
            running.result(timeout=180)
        self._pool.shutdown()
        return self.outcomes
