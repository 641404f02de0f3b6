"""Measures one stage on the device, as it will run inside a plan.

    warm up ─> [reference, sweep the caches, stage] x 3 to 7 ─> drop drifted samples ─> median

Inside a plan a stage finds its weights in no near cache, and its inputs where another core may have
left them. Repeated in a loop it would find both at hand, and lanes side by side would look better
than they are. So before each sample a sweep empties the near caches. What counts is the time from
its first kernel to its last (``CpuExecutor.stage``): in a plan there is nothing between two stages.

A series ends when its samples agree; if too many of them were taken while the reference ran at
another speed, it is repeated.
The measurement is a generator that yields after each sample, so the worker can answer inference
requests in between; a long stage pauses for them, and a sample that was interrupted is taken again.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from math import inf
from time import perf_counter_ns

from braid.core.measurement import StageLatency
from braid.core.schedule import Strategy
from braid.engine.cpu.executor import CpuExecutor, StageRun
from braid.engine.cpu.lanes import lay_out_stage
from braid.engine.runtime.yielding import NetClock, NetTime, YieldToRequests, no_pause
from braid.engine.timing.recorded_inputs import Activations
from braid.engine.timing.samples import (
    ReferenceWork,
    Sweep,
    TimerOptions,
    agree,
    reduce_samples,
    steady,
    uninterrupted,
)

LONG_US = 10_000.0
"""A stage that takes longer is warm after one run."""


class CpuStageTimer:
    """Times stages of one program at a time on one device."""

    def __init__(self, executor: CpuExecutor, options: TimerOptions) -> None:
        self._executor = executor
        self._options = options
        self._reference = ReferenceWork()
        self._sweep = Sweep(executor.threads)

    def measure(
        self,
        activations: Activations,
        groups: Sequence[Sequence[int]],
        threads: int | None = None,
        strategy: Strategy = "concurrent",
        pause: YieldToRequests = no_pause,
        hopeless_us: float = inf,
    ) -> Generator[None, None, StageLatency]:
        """Latency of one stage, in microseconds.

        Args:
            activations: of the program that the stage belongs to.
            groups: units that run in order within a group, side by side across groups.
            threads: how many the stage may use; None: all of the device.
            strategy: ``merge`` runs the only group as one kernel.
            pause: lets inference go first.
            hopeless_us: whoever takes longer once it is warm is not measured any further.
        """
        units = tuple(unit for group in groups for unit in group)
        threads = threads or self._executor.threads
        segment = lay_out_stage(activations.program, groups, threads, strategy)
        env = activations.environment(units)
        stage = self._executor.stage(activations.program, segment, env)
        for _ in range(2):
            latency_us = self._sample(stage, pause)
            yield
            if latency_us > LONG_US:
                break
        if latency_us > hopeless_us:
            return StageLatency(latency_us, 0.0, 1)
        kept: list[float] = []
        samples: list[float] = []
        for _ in range(self._options.max_series):
            samples, references = [], []
            while len(samples) < self._options.repeats and not self._agree(samples):
                references.append(self._sample_reference())
                samples.append(self._sample(stage, pause))
                yield
            kept += steady(samples, references)
            if len(kept) > len(samples) // 2:
                break
        return reduce_samples(kept or samples)

    def _agree(self, samples: Sequence[float]) -> bool:
        """Whether the samples so far leave little to learn from more of them."""
        return agree(samples, self._options.agreeing, self._options.agreement)

    def _sample(self, stage: StageRun, pause: YieldToRequests) -> float:
        def sample() -> NetTime:
            self._sweep.run()
            clock = NetClock(pause)
            return clock.net_time(*stage(clock))

        return uninterrupted(sample)

    def _sample_reference(self) -> float:
        start = perf_counter_ns()
        self._reference.run()
        return (perf_counter_ns() - start) / 1e3
