"""Measures stages on the device: one as it will run inside a plan, and the fixed prices of all.

    warm up ─> [sweep the caches, stage] x 3 to 7, until samples agree ─> median

Inside a plan a stage finds its weights in no near cache, and its inputs where another core may have
left them. Repeated in a loop it would find both at hand, and lanes side by side would look better
than they are. So before each sample a sweep empties the near caches. What counts is the time from
its first kernel to its last (``CpuExecutor.stage``): in a plan there is nothing between two stages.

Fixed prices are measured with units that do next to nothing. Planners use them in lower bounds
(scheduler/cost.py, ``Overheads``), so the price of a group is the lowest that was seen; the price
of a stage, which is safe when too large, is the median.
"""

from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic

import numpy as np

from braid.core.measurement import StageLatency, StageOverheads
from braid.engine.cpu.border import touch
from braid.engine.cpu.executor import CpuExecutor, StageRun
from braid.engine.cpu.kernels.candidates import bind_on_cpu
from braid.engine.cpu.lane_groups import Groups
from braid.engine.cpu.lanes import lay_out_stage
from braid.engine.device import AskedStage, MakeInputs
from braid.engine.program.kernel import PackedWeights
from braid.engine.program.program import Program
from braid.engine.runtime.yielding import NetClock, NetTime, YieldToRequests
from braid.engine.timing.overheads import CHAIN, tiny_graph
from braid.engine.timing.recorded_inputs import Activations
from braid.engine.timing.samples import TimerOptions, reduce_samples, uninterrupted

LONG_US = 10_000.0  # a stage that takes longer is warm after one run
SCALING = 0.9  # least part of all threads' time on a long unit that the unit takes on one thread


class CpuStageTimer:
    """Times stages of one program at a time on one device."""

    def __init__(
        self,
        executor: CpuExecutor,
        activation_bytes: int,
        options: TimerOptions,
        near: Callable[[], Groups] = tuple,
    ) -> None:
        """Keep at most ``activation_bytes`` of values; ``near`` gives groups of near threads."""
        self._near = near
        self._executor = executor
        self._activation_bytes = activation_bytes
        self._options = options
        # More than the caches of each core hold, of what no stage reads.
        self._swept = np.zeros(_near_cache_bytes() * executor.threads // 2, np.float32)
        self._activations: Activations | None = None
        self._long_us: dict[int, float] = {}  # units of that program that take long

    def measure(
        self, program: Program, inputs: MakeInputs, stage: AskedStage, pause: YieldToRequests
    ) -> Generator[None, None, StageLatency]:
        """Latency on real values; that of a long unit on one thread is scaled from all threads."""
        activations = yield from self._values(program, inputs, pause)
        alone = stage.groups[0][0] if sum(map(len, stage.groups)) == 1 else None
        if stage.threads == 1 and alone in self._long_us:
            return StageLatency(SCALING * self._executor.threads * self._long_us[alone], 0.0, 1)
        latency = yield from self._series(self._ready(activations, stage), stage, pause)
        if alone is not None and stage.threads is None and latency.latency_us > LONG_US:
            self._long_us[alone] = latency.latency_us
        return latency

    def forget(self) -> None:
        self._activations = None
        self._long_us.clear()
        self._executor.forget()

    def _values(
        self, program: Program, inputs: MakeInputs, pause: YieldToRequests
    ) -> Generator[None, None, Activations]:
        if self._activations is None or not self._activations.serve(program):
            self._activations = None  # free before the next ones are made
            self._long_us.clear()
            yield
            self._activations = Activations(
                program, inputs(), self._executor, self._activation_bytes, pause
            )
            yield
        return self._activations

    def _ready(self, activations: Activations, stage: AskedStage) -> StageRun:
        threads = stage.threads or self._executor.threads
        program, groups = activations.program, stage.groups
        how = stage.strategy, stage.delegated, self._near()
        segment = lay_out_stage(program, groups, threads, *how)
        env = activations.environment(tuple(unit for group in groups for unit in group))
        return self._executor.stage(program, segment, env)

    def _series(
        self, run: StageRun, stage: AskedStage, pause: YieldToRequests
    ) -> Generator[None, None, StageLatency]:
        """Warm up, then samples until they agree."""
        for _ in range(2):
            first_us = self._sample(run, pause)
            yield
            if first_us > LONG_US:
                break
        if stage.hopeless_us is not None and first_us > stage.hopeless_us:
            return StageLatency(first_us, 0.0, 1)
        samples: list[float] = []
        until = monotonic() + self._options.most_s
        while len(samples) < self._options.repeats and not self._options.agree(samples):
            if len(samples) >= self._options.agreeing and monotonic() >= until:
                break
            samples.append(self._sample(run, pause))
            yield
        return reduce_samples(samples)

    def _sample(self, run: StageRun, pause: YieldToRequests) -> float:
        def sample() -> NetTime:
            touch(self._swept)
            clock = NetClock(pause)
            return clock.net_time(*run(clock))

        return uninterrupted(sample)


def _near_cache_bytes() -> int:
    """Size of one core's level 2 cache."""
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text().strip()
        return int(text.rstrip("KM")) << {"K": 10, "M": 20}[text[-1]]
    except (OSError, ValueError, KeyError, IndexError):
        return 2 << 20


_SAMPLES = 9
_INNER = 50  # runs of an idle stage in one sample: each takes some microseconds


def measure_overheads(executor: CpuExecutor) -> Generator[None, None, StageOverheads]:
    """Measure the overheads of stages, in some milliseconds; yields between samples."""
    groups = {"single": [1], "chain": [CHAIN], "pair": [1] * min(2, executor.threads)}
    stages = {name: _stage(executor, counts) for name, counts in groups.items()}
    samples: dict[str, list[float]] = {name: [] for name in stages}
    for stage in stages.values():
        _sample_us(stage)
    for _ in range(_SAMPLES):
        for name, stage in stages.items():
            samples[name].append(_sample_us(stage))
        yield
    single = median(samples["single"])
    launch = max(0.0, (median(samples["chain"]) - single) / (CHAIN - 1))
    return StageOverheads(
        stage_us=max(0.0, single - launch),
        group_us=max(0.0, min(samples["pair"]) - max(samples["single"])),
        launch_us=launch,
    )


def _stage(executor: CpuExecutor, groups: Sequence[int]) -> Callable[[], tuple[int, int]]:
    graph, members = tiny_graph(groups)
    program = bind_on_cpu(graph, {}, PackedWeights(), executor.threads)
    segment = lay_out_stage(program, members, executor.threads)
    x = np.zeros(16, np.float32)
    run = executor.stage(program, segment, program.environment({"x": x}))
    return partial(run, None)


def _sample_us(stage: Callable[[], tuple[int, int]]) -> float:
    spans = [stage() for _ in range(_INNER)]
    return sum(end - start for start, end in spans) / _INNER / 1e3
