"""The fixed prices of stages on this device, measured with units that do next to nothing.

    one group of 1, of 5 units ──> price of a stage, of a further unit
    two groups, side by side   ──> price of a further group: waking its threads, waiting for them

Planners use them in lower bounds (scheduler/cost.py, ``Overheads``), so the price of a group is
the lowest that was seen; the price of a stage, which is safe when too large, is the median.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from braid.core.graph import Operator, OpGraph
from braid.core.tensor import TensorSpec
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.lanes import lay_out_stage
from braid.engine.program.kernel import PackedWeights
from braid.engine.program.program import bind

_SAMPLES = 9
_INNER = 50  # runs of an idle stage in one sample: each takes some microseconds
CHAIN = 5  # units of the longer group


@dataclass(frozen=True, slots=True)
class StagePrices:
    """What a stage costs besides its units' own work, in microseconds."""

    stage_us: float  # paid once
    group_us: float  # for each group after the first
    launch_us: float  # for each unit


def measure_prices(executor: CpuExecutor) -> Generator[None, None, StagePrices]:
    """Measure; yields between samples. Takes some milliseconds."""
    groups = {"single": [1], "chain": [CHAIN], "pair": [1] * min(2, executor.threads)}
    stages = {name: _stage(executor, counts) for name, counts in groups.items()}
    samples: dict[str, list[float]] = {name: [] for name in stages}
    for stage in stages.values():
        _sample_us(stage)
    for _ in range(_SAMPLES):
        for name, stage in stages.items():
            samples[name].append(_sample_us(stage))
        yield
    one = median(samples["single"])
    launch = max(0.0, (median(samples["chain"]) - one) / (CHAIN - 1))
    return StagePrices(
        stage_us=max(0.0, one - launch),
        group_us=max(0.0, min(samples["pair"]) - max(samples["single"])),
        launch_us=launch,
    )


def tiny_graph(groups: Sequence[int]) -> tuple[OpGraph, list[list[int]]]:
    """Units that do next to nothing, group i having ``groups[i]`` of them, and who is in which."""
    units, names = [], ["x"]
    for group, count in enumerate(groups):
        reads = "x"
        for place in range(count):
            name = f"{group}.{place}"
            units.append(Operator(name, "aten.relu", (reads,), (name,)))
            names.append(name)
            reads = name
    tiny = TensorSpec("FP32", (16,))
    graph = OpGraph(
        "tiny", {"x": tiny}, {"y": names[-1]}, {}, tuple(units), dict.fromkeys(names[1:], tiny)
    )
    numbers = iter(range(len(units)))
    return graph, [[next(numbers) for _ in range(count)] for count in groups]


def _stage(executor: CpuExecutor, groups: Sequence[int]) -> Callable[[], tuple[int, int]]:
    """A stage of tiny units, ready to run."""
    graph, members = tiny_graph(groups)
    program = bind(graph, {}, PackedWeights(), executor.threads)
    segment = lay_out_stage(program, members, executor.threads)
    run = executor.stage(program, segment, program.environment({"x": torch.zeros(16)}))
    return partial(run, None)


def _sample_us(stage: Callable[[], tuple[int, int]]) -> float:
    spans = [stage() for _ in range(_INNER)]
    return sum(end - start for start, end in spans) / _INNER / 1e3
