"""Contest of the plans of one model, device, shape and batch size, decided by requests in service.

All candidates passed the same check of outputs, so any of them may answer. Executables of
challengers are bounded in memory with all else that is prepared beside the plans in force
(``braid.core.shapes``). A decided contest holds one executable, and opens again when the
latency of that leaves its interval for a minute.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median
from time import monotonic
from typing import Any

from braid.compiler.retries import RetryPauses, RetryWhileRestarting
from braid.core.background import BackgroundTasks
from braid.core.contest import Contest
from braid.core.errors import BraidError
from braid.core.plan import runs_in_sequence
from braid.core.runtimes import RUNTIMES
from braid.core.schedule import ContestRow, ContestTable, PlanCandidate, Schedule
from braid.core.shapes import ShapeMemory
from braid.server.devices.executables import Executable

log = logging.getLogger("braid.contest")

MOST_INPUT_BYTES = 64 << 20
"""Slot of a batch that is recorded for pairs in idle time, at most."""

RECENT = 32
"""Newest runs of each candidate that its latency is told by."""

GAP_S, MOST_GAP_S, LEARNS = 0.003, 0.02, 0.1
"""From one batch to the next: a first guess, the most, and the part that each one counts."""

AGAIN_S, TRIES = 1.0, 30
"""Seconds until a candidate is prepared again that a restarting worker could not prepare."""

MOST_DEATHS = 2
"""Deaths of the worker in a candidate's runs after which it leaves."""


@dataclass(frozen=True, slots=True)
class ContestEvents:
    """What a contest asks of its replica."""

    prepare: Callable[[Schedule], Awaitable[Executable]]
    """Makes the first candidate of a schedule ready to run."""
    retire: Callable[[Executable], Coroutine[Any, Any, None]]
    """Releases an executable once no batch uses it."""
    decided: Callable[[Schedule], object]
    """Receives the schedule with its winner in force."""


class PlanContest:
    """Belongs to the event loop."""

    def __init__(
        self,
        schedule: Schedule,
        first: Executable,
        events: ContestEvents,
        memory: ShapeMemory,
        loser_share: float,
    ) -> None:
        """Let the first candidate of a schedule run; ``open`` prepares the others."""
        self.schedule = schedule
        self.inputs: bytes | None = None
        """Slot of the first batch; None: there was none, or it is too large."""
        self.takes_zeros = True
        """False: the model refuses them."""
        self._events = events
        self._memory = memory
        self._loser_share = loser_share
        self.in_force = first
        """Executable of the candidate that leads."""
        self._ready = {schedule.planner: first}
        self._contest = Contest([schedule.planner], loser_share=loser_share)
        self._runs: Counter[str] = Counter()
        self._recent_us: dict[str, deque[float]] = {}  # of requests, by candidate
        self._ended_at: float | None = None  # the newest batch of requests
        self.gap_s = GAP_S
        """From one batch of requests to the next, as a rule: pairs in idle time leave as much."""
        self._deaths: Counter[str] = Counter()
        self._counted: set[str] = set()  # in ``memory``: challengers
        self._background = BackgroundTasks("contest of plans")
        self._opening: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        """Whether several candidates are ready, and none has won."""
        return not self._contest.is_decided

    @property
    def is_in_pair(self) -> bool:
        return self._contest.is_in_pair

    @property
    def wants_inputs(self) -> bool:
        return self.inputs is None and self.is_open and self._can_be_recorded

    @property
    def can_be_tried(self) -> bool:
        """Whether there are inputs for idle time, or zeros do."""
        return self._can_be_recorded and (self.takes_zeros or self.inputs is not None)

    @property
    def _can_be_recorded(self) -> bool:
        """Whether batches are small enough, and their slots hold all of them."""
        layout = self.in_force.layout
        return not layout.has_heap and layout.size_bytes <= MOST_INPUT_BYTES

    def slot(self) -> bytes:
        """Slot of a batch: that of the first one, or zeros before it."""
        return self.inputs or bytes(self.in_force.layout.size_bytes)

    @property
    def size_bytes(self) -> int:
        """Memory of challengers, about."""
        return sum(ready.size_bytes for name, ready in self._ready.items() if not self._leads(name))

    @property
    def executables(self) -> list[Executable]:
        return list(self._ready.values())

    @property
    def runs(self) -> Mapping[str, int]:
        return self._runs

    @property
    def estimated_loss(self) -> float:
        return self._contest.estimated_loss

    def _leads(self, name: str) -> bool:
        return name == self._contest.incumbent

    def begin(self) -> None:
        """Prepare the other candidates beside the requests, and let them take part."""
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open())

    async def _open(self) -> None:
        for candidate in self.schedule.candidates:
            if candidate.name not in self._ready:
                ready = await self._prepared(candidate.name)
                if ready is not None and self._is_closed:
                    await self._events.retire(ready)
                    return
                if ready is not None:
                    self._ready[candidate.name] = ready
        candidates = sorted(
            (one for one in self.schedule.candidates if one.name in self._ready), key=_simplicity
        )
        names = [one.name for one in candidates]
        estimates_us = [one.latency_us for one in candidates if one.latency_us is not None]
        known = estimates_us if len(estimates_us) == len(names) else None
        if self.schedule.provenance.is_decided:
            self._contest.reopen(names)
        else:
            self._contest = Contest(names, estimates_us=known, loser_share=self._loser_share)
        self._settle()

    async def _prepared(self, name: str) -> Executable | None:
        """Make a candidate ready to run; None: it cannot be, and takes no part."""
        retry = RetryWhileRestarting(RetryPauses((AGAIN_S,) * TRIES))
        try:
            return await retry(lambda: self._events.prepare(self.schedule.led_by(name)))
        except BraidError as error:  # no room, or no such engine any more
            facts = {"plan": name, "schedule_id": self.schedule.key.id, "reason": str(error)}
            log.warning("a plan takes no part in service", extra=facts)
            return None

    def next(
        self, *, may_explore: bool, slack_us: float | None = None, free: bool = False
    ) -> Executable:
        """Return the executable of the next batch; see ``Contest.next``."""
        contest = self._contest
        if contest.is_decided:
            return self.in_force
        if not free and self._ended_at is not None:
            gap_s = min(max(0.0, monotonic() - self._ended_at), MOST_GAP_S)
            self.gap_s += LEARNS * (gap_s - self.gap_s)
        return self._ready[contest.next(may_explore=may_explore, slack_us=slack_us, free=free)]

    def took(self, ready: Executable, run_us: float, *, is_request: bool = True) -> None:
        name = self._name_of(ready)
        if name is None:
            return
        contest, now = self._contest, monotonic()
        if is_request:
            self._runs[name] += 1
            self._recent_us.setdefault(name, deque(maxlen=RECENT)).append(run_us)
            self._ended_at = now
        if contest.took(name, max(run_us, 1.0), at=now):
            self._settle()
        if contest.is_decided and self.schedule.others and contest.left_interval:
            log.info("a contest opens again", extra={"schedule_id": self.schedule.key.id})
            self.begin()

    def failed(self, ready: Executable, *, is_death: bool = False) -> bool:
        """Let a challenger go that failed, or ended the worker twice.

        Returns whether it was one: then another candidate may run the batch.
        """
        name = self._name_of(ready)
        if name is None or self._leads(name):
            return False
        self._deaths[name] += 1
        if not is_death or self._deaths[name] >= MOST_DEATHS:
            log.warning("a plan leaves: its run failed", extra={"plan": name})
            self.drop(name)
        return True

    def _name_of(self, ready: Executable) -> str | None:
        for name, own in self._ready.items():
            if own is ready:
                return name
        return None

    def drop(self, name: str) -> None:
        self._contest.drop(name)
        self._settle()

    def _settle(self) -> None:
        """Put the incumbent in force, and release who takes part no more."""
        first, *others = self._contest.candidates
        self.in_force = self._ready[first]
        challengers = set() if self._contest.is_decided else {*others}
        has_left = self._ready.keys() - challengers - {first}
        for name in self._counted - challengers:
            self._memory.forget(self, name)
        for name in has_left:
            self._background.start(self._events.retire(self._ready.pop(name)))
        new, self._counted = challengers - self._counted, challengers
        for name in new & self._ready.keys():  # others may have to go for it
            self._memory.keep(self, name, self._ready[name].size_bytes)
        if has_left and self._contest.is_decided:
            self.inputs = None
            self.schedule = self.schedule.led_by(first, tuple(self._decision()))
            facts = {"plan": first, "schedule_id": self.schedule.key.id}
            log.info("a contest is decided", extra=facts)
            self._events.decided(self.schedule)

    def _decision(self) -> Iterator[ContestRow]:
        """Rows to store with a decision."""
        first, *others = self._rows()
        yield first
        yield from (row.beside(first) for row in others)

    def _rows(self) -> Iterator[ContestRow]:
        """Rows without what requests have shown, the incumbent first.

        Latencies are of the newest runs, also in idle time, else those of the schedule.
        """
        stored = {row.name: row for row in self.schedule.table.rows}
        for row in self._contest.table() if self._opening is not None else ():
            before = stored.pop(row.name)
            latency_us = row.latency_us or before.latency_us
            yield replace(row, latency_us=latency_us, plan_id=before.plan_id)
        yield from stored.values()

    def table(self) -> ContestTable:
        """State of all candidates, the incumbent first, for people."""
        total = self._runs.total() or 1
        rows = [
            replace(
                row,
                share=self._runs[row.name] / total,
                runs=self._runs[row.name],
                latency_us=median(taken_us) if taken_us else row.latency_us,
            )
            for row in self._rows()
            for taken_us in (self._recent_us.get(row.name),)
        ]
        if rows[0].runs or rows[0].pairs:
            rows = [row.beside(rows[0]) for row in rows]
        is_decided = self.schedule.provenance.is_decided and not self.is_open
        return ContestTable(tuple(rows), is_decided)

    async def close(self) -> list[Executable]:
        """Take no further part; returns all executables."""
        self._is_closed = True
        self._memory.forget_all(self)
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        await self._background.ended()
        return self.executables


def _simplicity(candidate: PlanCandidate) -> tuple[bool, bool, bool]:
    plan = candidate.plan
    return candidate.name in RUNTIMES, bool(plan.parts), not runs_in_sequence(plan)
