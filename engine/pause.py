"""How long work on the device's thread lets inference go first.

Binding a large network takes a second, and a request does not wait for that. Whoever works long
calls a ``Pause`` between its steps: it answers the inference requests that have arrived, on the
spot. Not while a plan runs: runs share the memory for activations.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_LOOK_EVERY_S = 0.001

Pause = Callable[[], bool]
"""Returns whether anything ran."""


def no_pause() -> bool:
    """For work that nobody waits behind."""
    return False


def in_thread(call: Callable[[], T], pause: Pause) -> T:
    """Do ``call`` in a thread of its own, pausing until it is done; for what gives up the GIL."""
    results: list[T] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_LOOK_EVERY_S)
        pause()
    if failures:
        raise failures[0]
    return results[0]
