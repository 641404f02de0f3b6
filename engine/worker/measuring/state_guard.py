"""Measurements that belong to one state of the device: a change ends them.

    task ──step──> look at the state, now and then, and before latencies leave ──> DeviceChanged

Latencies are kept by the name of the state. Who asked for the task goes on in the other state. A
comparison or a search takes longer than some states last, so it is left where it is, and goes on
when the same one is asked for again. The round in which a comparison was left does not count
(engine/timing/rounds.py). A search needs the state only while it measures: it looks by itself, and
computes on in any.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from braid.core.errors import DeviceChanged
from braid.engine.device import Backend
from braid.engine.link.messages import ComparePlans, SearchPlans, SearchProgress, SearchResult
from braid.engine.runtime.yielding import YieldToRequests
from braid.engine.worker.measuring.measurements import Task

LOOK_S = 0.25
"""Seconds of a task after which the state is looked at again."""

LOOK_IN_ROUNDS_S = 0.06
"""The same, of a comparison that may be left: a turn of one contender at most goes unnoticed."""

FRESH_S = 0.02
"""Seconds for which a look counts at both ends of a task: it takes 0.1 to 0.3 ms on two cores."""

PART = 0.02
"""Part of the time that looks may take: they take longer where other processes have the cores."""

MOST_SEARCHES = 4
"""Searches that may be left, of other states or precisions."""

Search = Generator[SearchProgress | DeviceChanged | float | None, Any, SearchResult]
"""As a task, and yields DeviceChanged where it is to be left."""


@dataclass(frozen=True, slots=True)
class _Left:
    """A comparison that was left when the state changed."""

    request: ComparePlans
    task: Task
    at: float


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
        self._left: _Left | None = None
        self._searches: dict[SearchPlans, Search] = {}  # that were left, by what asks for them

    def in_state(
        self, task: Task, state: str | None, comparison: ComparePlans | None = None
    ) -> Task:
        """The same task, as long as the device is in the state of that name; None: in any.

        Args:
            task: that was not begun; the one that was left takes its place.
            state: name of a state.
            comparison: request of the task, which is left where it is at a change.

        Raises:
            DeviceChanged: it is in another one.
        """
        if state is None:
            return (yield from task)
        left_at: float | None = None  # until it goes on
        if comparison is not None and self._left is not None and self._left.request == comparison:
            task.close()
            task, left_at, self._left = self._left.task, self._left.at, None
        look_s = LOOK_S if comparison is None else LOOK_IN_ROUNDS_S
        goes_on_later, is_begun = False, left_at is not None
        try:
            self._check(state, FRESH_S)
            away_s = None if left_at is None else self._clock() - left_at
            left_at, is_begun = None, True
            while True:
                try:
                    progress = task.send(away_s)
                except StopIteration as stop:
                    is_begun = False
                    self._check(state, FRESH_S)
                    if comparison is not None:
                        self.forget()  # this state came to its end first
                    return stop.value  # type: ignore[no-any-return]
                away_s = None
                self._check(state, look_s)
                yield progress
        except DeviceChanged:
            if comparison is not None and is_begun:
                self._forget_comparison()
                self._left = _Left(comparison, task, self._clock() if left_at is None else left_at)
                goes_on_later = True
            raise
        finally:
            if not goes_on_later:
                task.close()

    def go_on(self, search: Search, request: SearchPlans) -> Task:
        """The search that was left when the same was asked for before, or ``search``.

        Raises:
            DeviceChanged: where the search yields it; it is left there.
        """
        asked = replace(request, cached_us="")  # what it has measured is known to it
        if (left := self._searches.pop(asked, None)) is not None:
            search.close()
            search = left
        goes_on_later = False
        try:
            while True:
                try:
                    progress = next(search)
                except StopIteration as stop:
                    return stop.value  # type: ignore[no-any-return]
                if isinstance(progress, DeviceChanged):
                    goes_on_later = True
                    raise progress
                yield progress
        finally:
            if goes_on_later:
                self._searches[asked] = search
                if len(self._searches) > MOST_SEARCHES:
                    self._searches.pop(next(iter(self._searches))).close()
            else:
                search.close()

    def forget(self) -> None:
        """Give up what was left, with what it holds."""
        self._forget_comparison()
        while self._searches:
            self._searches.popitem()[1].close()

    def _forget_comparison(self) -> None:
        left, self._left = self._left, None
        if left is not None:
            left.task.close()

    def _check(self, state: str, fresh_s: float) -> None:
        now = self._clock()
        is_due = now - self._looked_at >= max(fresh_s, self._took_s / PART)
        if is_due or self._name not in (state, ""):  # it may be back since the last look
            self._name = self._backend.state(self._pause).name
            self._looked_at = self._clock()
            self._took_s = self._looked_at - now
        if self._name not in (state, ""):
            raise DeviceChanged(state, self._name)
