"""The fixed prices of stages on this device, measured with units that do nothing.

    one group of 1, of 5 units ──> price of a stage, of a further unit
    two groups, side by side   ──> price of a further group: waking its threads, waiting for them

Planners use them in lower bounds (scheduler/cost.py, ``Overheads``), so the price of a group is
the lowest that was seen; the price of a stage, which is safe when too large, is the median.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns

import torch
from torch import Tensor

from engine.executor.cpu import CpuExecutor
from engine.executor.lanes import Segment, Step
from engine.executor.program import BoundUnit, Environment
from engine.kernels.kernel import Kernel, on_any_threads

_SAMPLES = 9
_INNER = 50  # runs of an idle stage in one sample: each takes some microseconds
_CHAIN = 5  # units of the longer group


@dataclass(frozen=True, slots=True)
class StagePrices:
    """What a stage costs besides its units' own work, in microseconds."""

    stage_us: float  # paid once
    group_us: float  # for each group after the first
    launch_us: float  # for each unit


def measure_prices(executor: CpuExecutor) -> Generator[None, None, StagePrices]:
    """Measure; yields between samples. Takes some milliseconds."""
    env: Environment = [torch.zeros(1), None, None]
    single, chain = _segment(executor, [1]), _segment(executor, [_CHAIN])
    pair = _segment(executor, [1, 1]) if executor.threads > 1 else single
    samples: dict[str, list[float]] = {"single": [], "chain": [], "pair": []}
    for segment in (single, chain, pair):
        _sample_us(executor, segment, env)
    for _ in range(_SAMPLES):
        for name, segment in (("single", single), ("chain", chain), ("pair", pair)):
            samples[name].append(_sample_us(executor, segment, env))
        yield
    one = median(samples["single"])
    launch = max(0.0, (median(samples["chain"]) - one) / (_CHAIN - 1))
    return StagePrices(
        stage_us=max(0.0, one - launch),
        group_us=max(0.0, min(samples["pair"]) - max(samples["single"])),
        launch_us=launch,
    )


def _segment(executor: CpuExecutor, groups: Sequence[int]) -> Segment:
    """Groups of idle units; group i writes slot 1 + i."""
    lanes = []
    for group, count in enumerate(groups):
        unit = BoundUnit(_IDLE, (0,), (1 + group,), 1.0)
        lanes.append(tuple(Step(_idle, unit, (), ()) for _ in range(count)))
    threads = executor.threads if len(groups) == 1 else 1
    return Segment(tuple(lanes), (threads,) * len(groups))


def _idle(x: Tensor) -> Tensor:
    return x


_IDLE = Kernel("idle", on_any_threads(_idle))


def _sample_us(executor: CpuExecutor, segment: Segment, env: Environment) -> float:
    start = perf_counter_ns()
    for _ in range(_INNER):
        executor.run_segment(segment, env)
    return (perf_counter_ns() - start) / _INNER / 1e3
