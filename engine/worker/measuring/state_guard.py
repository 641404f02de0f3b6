"""Measurements that belong to one state of the device: a change ends them.

    task ──step──> look at the state, now and then, and before latencies leave ──> DeviceChanged

Latencies are kept by the name of the state. Who asked for the task begins anew, with what is known
of the other state.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from braid.core.errors import DeviceChanged
from braid.engine.device import Backend
from braid.engine.link.messages import SearchProgress
from braid.engine.runtime.yielding import YieldToRequests
from braid.engine.worker.measuring.measurements import Task

LOOK_S = 0.25
"""Seconds of a task after which the state is looked at again."""

FRESH_S = 0.02
"""Seconds for which a look counts where latencies leave: it takes 0.1 to 0.3 ms on two cores."""

PART = 0.02
"""Part of the time that looks may take: they take longer where other processes have the cores."""


class StateGuard:
    """Looks at the state of one device while it is measured; used by the device thread only."""

    def __init__(
        self, backend: Backend, pause: YieldToRequests, clock: Callable[[], float] = monotonic
    ) -> None:
        self._backend = backend
        self._pause = pause
        self._clock = clock
        self._looked_at = float("-inf")
        self._took_s = 0.0
        self._name = ""  # as of then

    def in_state(self, task: Task, state: str | None) -> Task:
        """The same task, as long as the device is in the state of that name; None: in any.

        Raises:
            DeviceChanged: it is in another one.
        """
        if state is None:
            return (yield from task)
        try:
            self._check(state, FRESH_S)
            while True:
                try:
                    progress = next(task)
                except StopIteration as stop:
                    self._check(state, FRESH_S)
                    return stop.value  # type: ignore[no-any-return]
                has_latencies = isinstance(progress, SearchProgress) and bool(progress.latencies)
                self._check(state, FRESH_S if has_latencies else LOOK_S)
                yield progress
        finally:
            task.close()

    def _check(self, state: str, fresh_s: float) -> None:
        now = self._clock()
        if now - self._looked_at >= max(fresh_s, self._took_s / PART):
            self._name = self._backend.state(self._pause).name
            self._looked_at = self._clock()
            self._took_s = self._looked_at - now
        if self._name not in (state, ""):
            raise DeviceChanged(state, self._name)
