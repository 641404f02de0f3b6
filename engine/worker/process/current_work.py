"""What a worker's device thread does now, for the thread that watches over it.

    device thread ──begin, end, step──> CurrentWork <──status, stop── control thread (assembly.py)

A device thread does one thing at a time: a run that a request waits for, or a step of other work.
Runs on places of the device (engine/worker/side_by_side.py) go on beside it and each other. Each
has a signal that ends it (engine/runtime/stopping.py).
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from braid.core.errors import RunStopped
from braid.engine.link.messages import WorkerStatus
from braid.engine.runtime.stopping import StopSignal, stop_signal


class CurrentWork:
    """Record of the runs that are under way and of the present step of other work."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: dict[int, float] = {}  # by call, in order: when the device began with it
        self._stopped: dict[int, str] = {}  # calls that are not to run any more, and why
        self._beside: dict[int, tuple[float, StopSignal]] = {}  # runs on places: when they began
        self._signals: list[StopSignal] = []  # of places, to be used again
        self._latest = 0  # the last call that began to run
        self._step_began: float | None = None  # None: waits for messages
        self._inference, self._other = StopSignal(), StopSignal()
        stop_signal.set(self._other)

    # -- the device thread --------------------------------------------------------------------

    @contextmanager
    def running(self, call: int) -> Iterator[None]:
        """Surround a run's begin, on a CPU all of it; ``RunStopped`` if it was to end before."""
        with self._lock:
            self._note(call)
            if not self._runs:
                self._inference.clear()
            self._runs[call] = self._clock()
        token = stop_signal.set(self._inference)
        try:
            yield
        finally:
            stop_signal.reset(token)

    @contextmanager
    def running_beside(self, call: int) -> Iterator[None]:
        """Surround a run on a place, in its thread, so that it can be stopped alone."""
        with self._lock:
            self._note(call)
            signal = self._signals.pop() if self._signals else StopSignal()
            self._beside[call] = self._clock(), signal
        token = stop_signal.set(signal)
        try:
            yield
        finally:
            stop_signal.reset(token)
            with self._lock:
                del self._beside[call]
            signal.clear()  # no other thread knows it any more
            self._signals.append(signal)

    def _note(self, call: int) -> None:
        """Note that a call begins, unless it was stopped before."""
        self._latest = max(self._latest, call)
        if self._stopped and (reason := self._stopped.pop(call, None)) is not None:
            raise RunStopped(reason)

    def ended(self, call: int) -> None:
        """Record that a run is over, or failed; the device goes on with the next one."""
        with self._lock:
            if self._runs.pop(call, None) is None:
                return
            self._inference.clear()
            if self._runs:
                self._runs = dict.fromkeys(self._runs, self._clock())

    def begin_step(self) -> None:
        self._step_began = self._clock()

    def begin_work(self) -> None:
        """Record that other work begins; an earlier stop does not concern it."""
        self._other.clear()
        self.begin_step()

    def rest(self) -> None:
        self._step_began = None

    # -- the control thread -------------------------------------------------------------------

    def stop(self, call: int, reason: str) -> None:
        """End a run, or keep it from beginning; does nothing if it is over."""
        with self._lock:
            if call in self._beside:
                self._beside[call][1].stop(reason)
            elif call in self._runs:
                if call == next(iter(self._runs)):
                    self._inference.stop(reason)
            elif call > self._latest:
                self._stopped[call] = reason

    def stop_step(self, reason: str) -> None:
        self._other.stop(reason)

    def status(self) -> WorkerStatus:
        """The oldest run and the present step, in seconds since their start; None without any."""
        with self._lock:
            now = self._clock()
            runs = list(self._runs.items())[:1]  # the next one waits for the device
            runs += [(call, began) for call, (began, _) in self._beside.items()]
            step = self._step_began
        step_s = None if step is None else now - step
        if not runs:
            return WorkerStatus(step_s=step_s)
        (call, began), *others = runs
        beside = tuple((other, now - since) for other, since in others)
        return WorkerStatus(call, now - began, step_s, beside)
