"""Signals that end a run from another thread.

    control thread ──stop()──> StopSignal <──check()── units of a plan, one after the other
                                   │   └──descriptor── native segments look between primitives
                                   └──tells──> ONNX Runtime, which looks between its operators

The signal that a thread's work belongs to is a context variable; code that hands work to another
thread hands it on (``braid.engine.runtime.yielding.in_thread``, lanes of a plan). A single operator
is never interrupted: what must end even then is a process (engine/link/watch.py).
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from braid.core.descriptors import Descriptor
from braid.core.errors import RunStopped

Ender = Callable[[], None]
"""Function that makes a library end what it runs; called in another thread than the run's."""


class StopSignal:
    """Whether the present run of one thread is to end, and why."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._enders: list[Ender] = []
        self._reason: str | None = None
        self.descriptor = Descriptor(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        """Can be read while the run is to end."""

    def stop(self, reason: str) -> None:
        """Let the present run end with ``RunStopped(reason)``; the first reason counts."""
        with self._lock:
            if self._reason is not None:
                return
            self._reason = reason
            os.eventfd_write(self.descriptor.fileno(), 1)
            for end in self._enders:
                end()

    def clear(self) -> None:
        """Begin another run, which is not to end."""
        if self._reason is None:  # nearly always
            return
        with self._lock:
            self._reason = None
            os.eventfd_read(self.descriptor.fileno())

    def check(self) -> None:
        if self._reason is not None:
            raise RunStopped(self._reason)

    @contextmanager
    def ending_by(self, end: Ender) -> Iterator[None]:
        """Let ``end`` end the body when the run is to end; its error then becomes RunStopped."""
        with self._lock:
            self._enders.append(end)
            if self._reason is not None:
                end()
        try:
            yield
        except Exception as error:
            if self._reason is not None:
                raise RunStopped(self._reason) from error
            raise
        finally:
            with self._lock:
                self._enders.remove(end)


stop_signal: ContextVar[StopSignal | None] = ContextVar("stop_signal", default=None)
"""Signal of the run that the calling thread works for; None: the run cannot be stopped."""


def check_stopped() -> None:
    signal = stop_signal.get()
    if signal is not None:
        signal.check()


@contextmanager
def stoppable_session_run(seconds: float | None = None) -> Iterator[Any]:
    """Options for one run in ONNX Runtime, which ends when the calling thread's run is to end.

    Then, or after ``seconds`` without a stop signal, it raises ``RunStopped``.
    """
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.log_severity_level = 4
    # No graph is captured. Where this says nothing ONNX Runtime 1.32 raises and catches, for 44 us.
    options.add_run_config_entry("gpu_graph_id", "-1")

    def end() -> None:
        options.terminate = True

    signal = stop_signal.get()
    if signal is not None:
        with signal.ending_by(end):
            yield options
        return
    if seconds is None:
        yield options
        return
    with _stopped_after(seconds) as stop, stop.ending_by(end):
        yield options


@contextmanager
def _stopped_after(seconds: float) -> Iterator[StopSignal]:
    signal = StopSignal()
    reason = f"ONNX Runtime was ended after {seconds:g} s; the model may never end on these values"
    timer = threading.Timer(seconds, signal.stop, (reason,))
    timer.daemon = True
    timer.start()
    try:
        yield signal
    finally:
        timer.cancel()
