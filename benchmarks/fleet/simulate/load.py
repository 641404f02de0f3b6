"""Clients of a simulated fleet; each request ends exactly once, and is counted then.

open loop      requests begin at random moments (Poisson), whatever became of the others
arrivals       the same at given moments: those of a real run
closed loop    each client sends its next request when it has its answer
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from math import inf

from benchmarks.fleet.simulate.doors import Door, NoNode
from benchmarks.fleet.simulate.nodes import NodeDied
from braid.core.errors import DeadlineExceeded, QueueFull

OK, REFUSED, LATE, UNAVAILABLE = "OK", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "UNAVAILABLE"
RETRY_S = 0.01
"""Seconds that a client of the closed loop waits after a failure without a hint."""


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Clients that wait for their answers."""

    clients: int


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Poisson arrivals; rates change at given times."""

    rates: tuple[tuple[float, float], ...]  # (from this second on, requests a second), ascending

    def rate_at(self, now: float) -> tuple[float, float]:
        """Return the rate, and until when it holds."""
        until = next((at for at, _ in self.rates if at > now), inf)
        return next(rate for at, rate in reversed(self.rates) if at <= now), until


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests at given moments."""

    moments_s: tuple[float, ...]  # ascending


Load = ClosedLoop | OpenLoop | Arrivals


@dataclass(slots=True)
class Tally:
    """What the clients saw: of requests that began between ``begin`` and ``end``, in seconds."""

    begin: float
    end: float
    sent: int = 0
    answers: int = 0  # that came in that time, to whichever request
    outcomes: Counter[str] = field(default_factory=Counter)
    latencies_s: list[float] = field(default_factory=list)
    finished: list[tuple[float, float]] = field(default_factory=list)  # (when, latency) of OK


class Clients:
    """Clients in front of the doors."""

    def __init__(
        self,
        doors: Sequence[Door],
        chance: random.Random,
        tally: Tally,
        way_s: float = 0.0,
        timeout_s: float = inf,
    ) -> None:
        """Take random doors.

        Args:
            doors: before the same nodes.
            chance: of arrivals and doors.
            tally: where ends are counted.
            way_s: constant part of each latency, on the way to the node and back.
            timeout_s: of each request.
        """
        self._doors, self._chance, self._tally = doors, chance, tally
        self._way_s, self._timeout_s = way_s, timeout_s
        self._running: set[asyncio.Task[float]] = set()

    async def send(self, load: Load) -> None:
        """Send until the tally's end, and wait until all requests have ended."""
        if isinstance(load, ClosedLoop):
            await asyncio.gather(*(self._client() for _ in range(load.clients)))
            return
        now = asyncio.get_running_loop().time
        moments = load.moments_s if isinstance(load, Arrivals) else self._random_moments(load)
        for due in takewhile(lambda due: due < self._tally.end, moments):
            await asyncio.sleep(due - now())
            task = asyncio.create_task(self._request())
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        if self._running:
            await asyncio.wait(set(self._running))

    def _random_moments(self, load: OpenLoop) -> Iterator[float]:
        due = 0.0
        while True:
            rate, until = load.rate_at(due)
            gap = self._chance.expovariate(rate) if rate > 0 else inf
            if due + gap > until:  # as memoryless as the arrivals
                due = until
                continue
            due += gap
            yield due

    async def _client(self) -> None:
        now = asyncio.get_running_loop().time
        await asyncio.sleep(self._chance.uniform(0, 0.001))  # clients do not begin as one
        while now() < self._tally.end:
            if pause_s := await self._request():
                await asyncio.sleep(pause_s)

    async def _request(self) -> float:
        began = asyncio.get_running_loop().time()
        counts = self._tally.begin <= began < self._tally.end
        self._tally.sent += counts
        pause_s = RETRY_S
        try:
            await self._ask(began, counts)
            outcome, pause_s = OK, 0.0
        except QueueFull as error:
            outcome, pause_s = REFUSED, max(RETRY_S, error.retry_after_s or 0.0)
        except DeadlineExceeded:
            outcome = LATE
        except (NodeDied, NoNode):
            outcome = UNAVAILABLE
        if counts:
            self._tally.outcomes[outcome] += 1
        return pause_s

    async def _ask(self, began: float, counts: bool) -> None:
        now = asyncio.get_running_loop().time
        door = self._chance.choice(self._doors)
        deadline = None if self._timeout_s == inf else began + self._timeout_s
        node = await door.take()
        try:
            await asyncio.sleep(self._way_s / 2)
            if not node.is_up:
                raise NodeDied(f"node {node.number} was killed")
            await node.ask(1, deadline)
            await asyncio.sleep(self._way_s / 2)
        finally:
            door.give_back(node)
        self._tally.answers += self._tally.begin <= now() < self._tally.end
        if counts:
            latency_s = now() - began
            self._tally.latencies_s.append(latency_s)
            self._tally.finished.append((now(), latency_s))
            node.latencies_s.append(latency_s)
