"""Fixed prices of stages on a CPU, measured with units that do next to nothing.

Planners use them in lower bounds (scheduler/cost.py, ``Overheads``), so the price of a group is
the lowest that was seen; the price of a stage, which is safe when too large, is the median. What
threads waited for their cores is in none of them: where no sample is without, nothing is promised.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from statistics import median

import torch

from braid.core.measurement import StageOverheads
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.kernels.candidates import bind_on_cpu
from braid.engine.cpu.lanes import lay_out_stage
from braid.engine.program.kernel import PackedWeights
from braid.engine.runtime.lost_cores import ThreadWaits
from braid.engine.runtime.yielding import waited_part
from braid.engine.timing.overheads import CHAIN, tiny_graph
from braid.engine.timing.samples import MOST_WAITED

_SAMPLES = 9
_MOST_SAMPLES = 4 * _SAMPLES  # with those in which threads waited for their cores
_INNER = 50  # runs of an idle stage in one sample: each takes some microseconds


def measure_overheads(
    executor: CpuExecutor, begin_waits: Callable[[], ThreadWaits] = ThreadWaits
) -> Generator[None, None, StageOverheads]:
    """Measure the overheads of stages, in some milliseconds; yields between samples.

    ``begin_waits`` begins to count what threads wait for their cores.
    """
    groups = {"single": [1], "chain": [CHAIN], "pair": [1] * min(2, executor.threads)}
    stages = {name: _stage(executor, counts) for name, counts in groups.items()}
    samples: dict[str, list[float]] = {name: [] for name in stages}
    for stage in stages.values():
        _sample_us(stage)
    for _ in range(_MOST_SAMPLES):
        waits = begin_waits()
        taken = {name: _sample_us(stage) for name, stage in stages.items()}
        if waited_part(waits.longest_ns(), sum(taken.values()) * _INNER * 1e3) <= MOST_WAITED:
            for name, sample_us in taken.items():
                samples[name].append(sample_us)
        yield
        if len(samples["single"]) == _SAMPLES:
            break
    else:
        return StageOverheads(stage_us=max(taken.values()))
    one = median(samples["single"])
    launch = max(0.0, (median(samples["chain"]) - one) / (CHAIN - 1))
    return StageOverheads(
        stage_us=max(0.0, one - launch),
        group_us=max(0.0, min(samples["pair"]) - max(samples["single"])),
        launch_us=launch,
    )


def _stage(executor: CpuExecutor, groups: Sequence[int]) -> Callable[[], tuple[int, int]]:
    graph, members = tiny_graph(groups)
    program = bind_on_cpu(graph, {}, PackedWeights(), executor.threads)
    segment = lay_out_stage(program, members, executor.threads)
    run = executor.stage(program, segment, program.environment({"x": torch.zeros(16)}))
    return partial(run, None)


def _sample_us(stage: Callable[[], tuple[int, int]]) -> float:
    spans = [stage() for _ in range(_INNER)]
    return sum(end - start for start, end in spans) / _INNER / 1e3
