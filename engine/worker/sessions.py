"""ONNX Runtime sessions of a worker: one a model, opened when first wanted, shared while used.

Opening one takes seconds for a large model, so it is opened in a thread of its own, while requests
go on being answered.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from weakref import WeakValueDictionary

from braid.engine.device import Whole
from braid.engine.runtime.yielding import YieldToRequests, in_thread, no_pause

OpenWhole = Callable[[Path, str], Whole]
"""Opens the file that an artefact keeps of a model; see ``Backend.open_whole``."""


class SessionTable:
    """Sessions in use, by model digest. Used by the device thread only."""

    def __init__(self, open_whole: OpenWhole, pause: YieldToRequests = no_pause) -> None:
        self._open_whole = open_whole
        self._pause = pause
        self._open: WeakValueDictionary[str, Whole] = WeakValueDictionary()

    def session(self, digest: str, artefact: Path) -> Whole:
        """Find the session of a model, or open it.

        Raises:
            PreconditionFailed: the artefact keeps no model file, or ONNX Runtime refuses it.
        """
        found = self._open.get(digest)
        if found is None:
            found = in_thread(lambda: self._open_whole(artefact, digest), self._pause)
            self._open[digest] = found
        return found
