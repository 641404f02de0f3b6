"""Timer of stages as they will run: inside a CUDA graph, after and before other stages.

    capture R copies, and 2R ─> two warm-ups ─> samples ─> drop drifted ones ─> median ─> destroy

    one sample, submitted at once:   pace │ R copies │ pace │ 2R copies      (│: a timed event)
    latency of one copy:             (time of 2R copies - time of R copies) / R

The slope leaves out what a replay costs as a whole. The *pace* is a fixed piece of work, for two
purposes: while it runs, the host launches what is timed next, so that the device never waits for
the host; and if it takes longer or shorter than usual, the clocks have changed, and the sample is
put aside. Weights and activations are hot, as those of a small network are; the plans of a large
one are judged on whole graphs in the end (engine/timing/comparison.py).
"""

import math
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import torch

from braid.core.measurement import StageLatency
from braid.engine.cuda.driver.faults import classified
from braid.engine.cuda.driver.interface import ORIGIN, Driver, Event, Graph, Pool
from braid.engine.cuda.graphs.copies import Copies, OneByOne, ReadyStage, make_copies, ready_stage
from braid.engine.cuda.graphs.prepare import capturing
from braid.engine.cuda.graphs.staging import resident
from braid.engine.device import AskedStage, MakeInputs
from braid.engine.ops.dtypes import tensors_of
from braid.engine.program.program import Program
from braid.engine.runtime.yielding import YieldToRequests
from braid.engine.timing.recorded_inputs import Activations
from braid.engine.timing.samples import TimerOptions, reduce_samples

DRIFT = 0.02  # largest difference of a sample's pace from the usual pace, as a fraction
MIN_US = 1e-3  # shortest latency that is reported: planners divide by it
_REMEMBERED = 50  # latest samples of the pace, of some ten stages, whose median is the usual pace
COPIES, MOST_COPIES = 4, 64  # R
SPAN_US = 40.0  # of R copies at least: events tell half a microsecond
PACE_SIZE = 1280  # of two square matrices: 4.2 GFLOP, 0.07 ms at an H200's 60 TFLOP/s
_MOST_SERIES = 3  # how often a series may be repeated because the clocks changed


@dataclass(frozen=True, slots=True)
class _Pair:
    """R and 2R copies of a stage."""

    once: Copies
    twice: Copies

    def destroy(self) -> None:
        self.once.destroy()
        self.twice.destroy()


class CudaStageTimer:
    """Times stages of one program at a time. Made and used by the device's thread."""

    def __init__(
        self,
        driver: Driver,
        activation_bytes: int,
        options: TimerOptions,
        pace_size: int = PACE_SIZE,
    ) -> None:
        """Keep at most ``activation_bytes`` of a program's values between measurements."""
        self._driver = driver
        self._budget_bytes = activation_bytes
        self._options = options
        self._pace_size = pace_size
        self._origin = driver.stream(ORIGIN)
        self._pool: Pool | None = None
        self._pace: Graph | None = None
        self._paces: deque[float] = deque(maxlen=_REMEMBERED)
        self._pace_inputs: list[torch.Tensor] = []
        self._activations: Activations | None = None

    def measure(
        self, program: Program, inputs: MakeInputs, stage: AskedStage, pause: YieldToRequests
    ) -> Generator[None, None, StageLatency]:
        """Latency of one stage; ``stage.threads`` is ignored. May raise errors of the device."""
        with classified("preparing a measurement"):
            activations = self._values(program, inputs, pause)
        yield
        with classified("measuring a stage"):
            pair, latency_us = yield from self._capture(activations, stage)
        try:
            yield
            if stage.hopeless_us is not None and latency_us > stage.hopeless_us:
                return StageLatency(latency_us, 0.0, 1)
            return (yield from self._series(pair))
        finally:
            pair.destroy()

    def forget(self) -> None:
        self._activations = None
        if self._pace is not None:
            self._driver.destroy(self._pace)
        if self._pool is not None:
            self._driver.release_pool(self._pool)
        self._pool = self._pace = None
        self._pace_inputs.clear()
        self._driver.trim()

    def _values(self, program: Program, inputs: MakeInputs, pause: YieldToRequests) -> Activations:
        if self._activations is None or not self._activations.serve(program):
            self._activations = None  # free before the next ones are made
            given = resident(self._driver, program.graph, tensors_of(inputs()))
            runner = OneByOne(self._driver)
            self._activations = Activations(program, given, runner, self._budget_bytes, pause)
            self._driver.synchronise()
        return self._activations

    def _capture(
        self, activations: Activations, asked: AskedStage
    ) -> Generator[None, None, tuple[_Pair, float]]:
        """R and 2R copies, where R copies fill ``SPAN_US``, and a first latency."""
        stage = ready_stage(self._driver, activations, asked)
        yield
        pair, latency_us = yield from self._warm_pair(stage, COPIES)
        wanted = min(math.ceil(SPAN_US / latency_us), MOST_COPIES)
        if wanted > pair.once.count:
            pair.destroy()
            capture = pair.once.graph is not None
            pair, latency_us = yield from self._warm_pair(stage, wanted, capture)
        return pair, latency_us

    def _warm_pair(
        self, stage: ReadyStage, copies: int, capture: bool = True
    ) -> Generator[None, None, tuple[_Pair, float]]:
        """R and 2R copies after two samples, and the latency that the second one gave."""
        pool = self._pool = self._pool or self._driver.pool()
        if self._pace is None:
            self._pace = self._make_pace(pool)
        once = make_copies(stage, copies, pool, capture=capture)
        try:
            yield
            twice = make_copies(stage, 2 * copies, pool, capture=once.graph is not None)
        except BaseException:
            once.destroy()
            raise
        pair = _Pair(once, twice)
        try:
            yield
            self._sample(pair)
            latency_us, _ = self._sample(pair)
        except BaseException:
            pair.destroy()
            raise
        return pair, latency_us

    def _make_pace(self, pool: Pool) -> Graph:
        size = self._pace_size
        square = self._driver.empty((size, size), torch.float32).fill_(1.0)
        self._pace_inputs = [square, square]
        self._driver.launch(self._origin, torch.mm, self._pace_inputs)
        self._driver.synchronise()
        with capturing(self._driver, (self._origin,), pool) as captured:
            self._driver.launch(self._origin, torch.mm, self._pace_inputs)
        return captured[0]

    def _run_pace(self) -> None:
        assert self._pace is not None
        self._driver.replay(self._pace, self._origin)

    def _series(self, pair: _Pair) -> Generator[None, None, StageLatency]:
        """Samples until enough of them were taken at the usual pace."""
        kept: list[float] = []
        samples: list[float] = []
        for _ in range(_MOST_SERIES):
            samples, paces = [], list[float]()
            while len(samples) < self._options.repeats and not self._options.agree(samples):
                sample_us, pace_us = self._sample(pair)
                samples.append(sample_us)
                paces.append(pace_us)
                yield
            usual_us = median(self._paces)
            steady = [
                sample_us
                for sample_us, pace_us in zip(samples, paces, strict=True)
                if abs(pace_us - usual_us) <= DRIFT * usual_us
            ]
            kept += steady
            if 2 * len(steady) > len(samples):
                break
        return reduce_samples(kept or samples)

    def _sample(self, pair: _Pair) -> tuple[float, float]:
        """Latency of one copy, and what the pace took in between."""
        driver = self._driver
        with classified("measuring a stage"):
            self._run_pace()
            events = [self._mark()]
            for work in (pair.once.run, self._run_pace, pair.twice.run):
                work()
                events.append(self._mark())
            driver.synchronise(events[-1])
            once, pace, twice = (driver.elapsed_us(*ends) for ends in pairwise(events))
        self._paces.append(pace)
        copy_us = (twice - once) / pair.once.count
        if copy_us < MIN_US:  # disturbed; with the replay's fixed part it is at least possible
            copy_us = max(MIN_US, twice / (2 * pair.once.count))
        return copy_us, pace

    def _mark(self) -> Event:
        event = self._driver.event(timed=True)
        self._driver.record(event, self._origin)
        return event
