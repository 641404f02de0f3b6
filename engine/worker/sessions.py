"""ONNX Runtime sessions of a worker: one a model, opened when first wanted, shared while used.

Opening one takes seconds for a large model, so a task opens it in a thread of its own and yields
until it is there; requests go on being answered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from pathlib import Path
from time import sleep
from typing import TypeVar
from weakref import WeakValueDictionary

from engine.executor.cpu import CpuExecutor
from engine.executor.session import OnnxSession

T = TypeVar("T")

_LOOK_EVERY_S = 0.001


class SessionTable:
    """Open sessions by model digest. Used by the device thread only.

    The one opened last is kept even if nothing uses it: who wins with it is prepared next.
    """

    def __init__(self, executor: CpuExecutor) -> None:
        self._executor = executor
        self._open: WeakValueDictionary[str, OnnxSession] = WeakValueDictionary()
        self._latest: OnnxSession | None = None

    def session(self, digest: str, artefact: Path) -> OnnxSession:
        """The session of a model.

        Raises:
            PreconditionFailed: the artefact keeps no model file, or ONNX Runtime refuses it.
        """
        found = self._open.get(digest) or self._opened(digest, artefact)
        self._open[digest] = self._latest = found
        return found

    def opening(self, digest: str, artefact: Path) -> Generator[None, None, OnnxSession]:
        """The same as a task that yields while it opens."""
        found = self._open.get(digest)
        if found is None:
            found = yield from in_thread(lambda: self._opened(digest, artefact))
        self._open[digest] = self._latest = found
        return found

    def forget_latest(self) -> None:
        """Close the session opened last, unless it is used."""
        self._latest = None

    def _opened(self, digest: str, artefact: Path) -> OnnxSession:
        return OnnxSession(artefact, digest, self._executor.threads, self._executor.cpus)


def in_thread(call: Callable[[], T]) -> Generator[None, None, T]:
    """Do ``call`` in a thread of its own; yields until it is done, then returns or raises."""
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
        sleep(_LOOK_EVERY_S)
        yield
    if failures:
        raise failures[0]
    return results[0]
