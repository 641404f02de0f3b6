"""Throughput of runs side by side on places, beside runs one after the other on all threads.

    a turn:  │ A A A, on all threads │ B B B on each place, all places at once │     next: reversed

The ways differ in how many runs they do at once and in which runtime runs the model. After three
turns only the best one goes on, and those near it. Outputs of each place are compared with those of
all threads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from time import monotonic, perf_counter_ns

from braid.core.errors import BraidError, DeviceLost
from braid.core.program import PlanToRun
from braid.core.runtimes import RUNTIMES
from braid.engine.link.messages import CompareThroughput, PlaceMeasurement, ThroughputMeasurements
from braid.engine.ops.whole import output_specs
from braid.engine.runtime.arrays import Array, Arrays, empty_of
from braid.engine.runtime.yielding import YieldToRequests, elsewhere
from braid.engine.timing.comparison import errors
from braid.engine.worker.models import (
    ModelTable,
    ReadyExecutable,
    seeded_inputs,
)

FIRST_TURNS = 3
NEAR = 1.05  # slower ways, by this factor, do not go on

TURNS, MOST_TURNS = 5, 9  # most where some turns, but not most, speak against the best way

TURN_S = 0.04  # seconds of one turn, about: a few runs that follow on each other, as under load
BUDGET_S = 2.0  # seconds after which no further turn begins, once there are enough for an interval

MOST_PLACES = 16  # each has programs of its own, which take time to bind, and memory

LEAST_TURNS = 5
MOST_RUNS = 20


@dataclass(slots=True)
class _Rival:
    """One way of running side by side, and the latencies of one run, one a turn."""

    count: int
    runtime: str
    number: int  # of its executable
    copies: Sequence[ReadyExecutable]
    turns_us: list[float] = field(default_factory=list)

    @property
    def seconds_per_run(self) -> float:
        return median(self.turns_us) / self.count

    def lost(self, whole_us: Sequence[float]) -> int:
        """Count the turns in which runs on all threads, one after the other, computed more."""
        turns = zip(whole_us, self.turns_us, strict=False)
        return sum(us * self.count <= beside_us for us, beside_us in turns)


class Throughput:
    """Compares ways of running one program side by side."""

    def __init__(
        self, models: ModelTable, request: CompareThroughput, pause: YieldToRequests
    ) -> None:
        self._models = models
        self._request = request
        self._pause = pause
        key = request.to_run.program
        graph = models.program(key).graph
        self._inputs = seeded_inputs(graph, models.content(key), 1)
        self._specs = output_specs(graph)

    def run(self, threads: int) -> ThroughputMeasurements:
        ways = self._ways(threads)
        if not ways or not all(spec.elements for spec in self._specs.values()):
            return ThroughputMeasurements(())
        whole = self._models.executable_of(self._request.to_run, None)
        expected = self._once(whole)
        numbered = enumerate(ways, start=1)  # below 0: those above are the front end's
        rivals = [rival for n, way in numbered if (rival := self._rival(-n, *way, expected))]
        whole_us: list[float] = []
        try:
            self._turns(whole, rivals, whole_us)
        finally:
            whole.prepared.release()
            for rival in rivals:
                self._models.release(rival.number)
        return ThroughputMeasurements(
            tuple(
                PlaceMeasurement(
                    rival.count,
                    rival.runtime,
                    median(rival.turns_us),
                    tuple(
                        rival.count * us / beside_us
                        for us, beside_us in zip(whole_us, rival.turns_us, strict=False)
                    ),
                )
                for rival in rivals
            )
        )

    def _ways(self, threads: int) -> list[tuple[int, str]]:
        # One thread a place: with teams of several beside the team of all threads, libgomp counts
        # more threads than cores, and then no team of the process waits for work by spinning.
        if threads > MOST_PLACES or not self._models.has_places(threads):
            return []
        return [(threads, runtime) for runtime in self._request.ways]

    def _rival(self, number: int, count: int, runtime: str, expected: Arrays) -> _Rival | None:
        """Make one way ready as executable ``number``; None: it does not run, or errs."""
        to_run = PlanToRun(self._request.to_run.program, runtime=runtime, side_by_side=count)
        try:
            places = self._models.places(count)
            copies = [self._models.executable_of(to_run, place) for place in places]
            rival = _Rival(count, runtime, number, copies)
            self._models.prepare(number, copies)
            if runtime and any(copy.session is None for copy in copies):
                raise BraidError(f"{RUNTIMES[runtime]} does not run it")
            outputs = [self._once(copy) for copy in copies]
            if any(errors(results, expected)[1] > self._request.tolerance for results in outputs):
                raise BraidError("its outputs differ")
        except DeviceLost:
            raise
        except BraidError:
            self._models.release(number)
            return None
        return rival

    def _turns(
        self, whole: ReadyExecutable, rivals: Sequence[_Rival], whole_us: list[float]
    ) -> None:
        if not rivals:
            return
        runs = max(1, min(MOST_RUNS, round(TURN_S * 1e6 / self._together([whole], 1))))
        until, staying = monotonic() + BUDGET_S, list(rivals)
        while (turn := len(whole_us)) < MOST_TURNS:
            if turn >= LEAST_TURNS and monotonic() > until:
                return
            best = min(staying, key=lambda rival: rival.seconds_per_run) if turn else staying[0]
            if turn >= TURNS and not 0 < 2 * best.lost(whole_us) < turn:
                return
            if turn == FIRST_TURNS:
                most_s = NEAR * best.seconds_per_run
                staying = [rival for rival in staying if rival.seconds_per_run <= most_s]
            if turn % 2 == 0:
                whole_us.append(self._together([whole], runs))
            for rival in staying:
                rival.turns_us.append(self._together(rival.copies, runs))
            if turn % 2:
                whole_us.append(self._together([whole], runs))

    def _once(self, ready: ReadyExecutable) -> dict[str, Array]:
        outputs = self._memory()
        self._together([ready], 1, [outputs])
        return outputs

    def _memory(self) -> dict[str, Array]:
        return {name: empty_of(spec) for name, spec in self._specs.items()}

    def _together(
        self,
        copies: Sequence[ReadyExecutable],
        runs: int,
        outputs: Sequence[dict[str, Array]] = (),
    ) -> float:
        """Run each copy ``runs`` times, all copies at once; returns a run's microseconds."""
        self._pause()
        targets = outputs or [self._memory() for _ in copies]
        works = [self._work(copy, runs, to) for copy, to in zip(copies, targets, strict=True)]
        if copies[0].place is None:
            return works[0]() / runs
        places = [copy.place.start for copy in copies if copy.place is not None]
        return mean(elsewhere(list(zip(places, works, strict=True)), self._pause)) / runs

    def _work(
        self, ready: ReadyExecutable, runs: int, outputs: dict[str, Array]
    ) -> Callable[[], float]:
        def work() -> float:
            start = perf_counter_ns()
            for _ in range(runs):
                if ready.session is not None:
                    ready.session.run_into(self._inputs, outputs)
                else:
                    ready.prepared.begin(self._inputs, outputs).finish()
            return (perf_counter_ns() - start) / 1e3

        return work
