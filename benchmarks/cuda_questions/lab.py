"""Small graphs on one device, and how long their replays take.

jobs, branch by branch ──warm up, capture──> Captured ──replays──> median device time
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from benchmarks.cuda.clock import hold_up
from braid.core.measurement import StageLatency
from braid.engine.cuda.driver.interface import ORIGIN, Driver, Event, Graph, Stream
from braid.engine.cuda.graphs.prepare import capturing
from braid.engine.onednn.library import Run
from braid.engine.timing.samples import reduce_samples

WARM_UPS, REPLAYS = 3, 11
LAUNCH_US = 60.0
"""Longer than any launch of a graph of this size takes the host."""


@dataclass(frozen=True, slots=True)
class Job:
    """One launch."""

    run: Run
    inputs: Sequence[Tensor | None] = ()


Branches = Sequence[Sequence[Job]]
"""Jobs that run one after the other; different branches may overlap."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A graph, and what its jobs write at each replay, in order."""

    graph: Graph
    outputs: Sequence[Tensor]
    origin: Stream


class Lab:
    """One device. ``hold_up`` keeps the current stream busy for some microseconds."""

    def __init__(self, driver: Driver, hold_up: Callable[[float], None] = hold_up) -> None:
        self.driver = driver
        self.hold_up = hold_up
        self._pool = driver.pool()

    def capture(self, branches: Branches, again: int = 1) -> Captured:
        """A graph of branches between a fork and a join, ``again`` times one after the other.

        Args:
            branches: the first one on the origin stream.
            again: how often.
        """
        streams = tuple(self.driver.stream(index) for index in range(len(branches)))
        self._play(streams, branches)
        self.driver.synchronise()
        outputs: list[Tensor] = []
        with capturing(self.driver, streams, self._pool) as captured:
            for _ in range(again):
                outputs = self._play(streams, branches)
        return Captured(captured[0], outputs, streams[ORIGIN])

    def _play(self, streams: Sequence[Stream], branches: Branches) -> list[Tensor]:
        origin, sides = streams[ORIGIN], streams[ORIGIN + 1 :]
        if sides:
            fork = self._mark(origin)
            for side in sides:
                self.driver.wait(fork, side)
        outputs = [
            output
            for stream, jobs in zip(streams, branches, strict=True)
            for job in jobs
            for output in self.driver.launch(stream, job.run, job.inputs)
        ]
        for side in sides:
            self.driver.wait(self._mark(side), origin)
        return outputs

    def _mark(self, stream: Stream, *, timed: bool = False) -> Event:
        event = self.driver.event(timed=timed)
        self.driver.record(event, stream)
        return event

    def busy(self, stream: Stream, us: float) -> None:
        """Let a stream wait; what is put on it next begins only then."""

        def waiting() -> tuple[Tensor, ...]:
            self.hold_up(us)
            return ()

        self.driver.launch(stream, waiting, [])

    def replay_us(self, captured: Captured, delay_us: float = LAUNCH_US) -> float:
        """Device time of one replay; the host has launched it before it begins."""
        self.busy(captured.origin, delay_us)
        start = self._mark(captured.origin, timed=True)
        self.driver.replay(captured.graph, captured.origin)
        end = self._mark(captured.origin, timed=True)
        self.driver.synchronise(end)
        return self.driver.elapsed_us(start, end)

    def timing(self, captured: Captured, delay_us: float = LAUNCH_US) -> StageLatency:
        for _ in range(WARM_UPS):
            self.replay_us(captured, delay_us)
        return reduce_samples([self.replay_us(captured, delay_us) for _ in range(REPLAYS)])

    def branches_us(self, branches: Branches) -> float:
        """Median device time of branches in a graph, which is then destroyed."""
        captured = self.capture(branches)
        try:
            return self.timing(captured).latency_us
        finally:
            self.driver.destroy(captured.graph)

    def slope_us(self, branches: Branches, copies: int = 8) -> float:
        """Device time of branches among copies of themselves: what a replay costs is left out."""
        once = self.capture(branches, again=copies)
        twice = self.capture(branches, again=2 * copies)
        try:
            return (self.timing(twice).latency_us - self.timing(once).latency_us) / copies
        finally:
            self.driver.destroy(once.graph)
            self.driver.destroy(twice.graph)
