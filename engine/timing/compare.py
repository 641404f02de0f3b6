"""Whole-model comparison of a plan with the sequential plan: are the numbers right, is it faster?

Both plans run in turns in one series, changing who goes first, so that drift hits both alike.
The numerical reference is neither: it is the plain interpreter over registry kernels in fp32.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns

import torch
from torch import Tensor

from engine.executor.cpu import CpuExecutor
from engine.executor.lanes import Segment
from engine.executor.program import Program
from engine.specialise import interpret
from engine.timing.samples import Timing, reduce_samples


@dataclass(frozen=True, slots=True)
class ComparisonOptions:
    """How long two plans are compared."""

    min_rounds: int = 7
    max_rounds: int = 40
    budget_s: float = 3.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """A plan beside the sequential plan, measured in one series."""

    plan: Timing
    sequential: Timing
    max_abs_error: float
    max_rel_error: float  # relative to the largest element of each output


def compare_plans(
    executor: CpuExecutor,
    program: Program,
    plans: tuple[Sequence[Segment], Sequence[Segment]],
    inputs: Mapping[str, Tensor],
    options: ComparisonOptions,
) -> Generator[None, None, Comparison]:
    """Compare ``plans`` = (candidate, sequential); yields between runs."""
    reference = interpret(program.graph, program.constants(), inputs)
    yield
    got = executor.run(program, plans[0], inputs)
    max_abs, max_rel = errors(got, reference)
    del got, reference
    executor.run(program, plans[1], inputs)
    samples: tuple[list[float], list[float]] = ([], [])
    began = perf_counter_ns()
    for round_ in range(options.max_rounds):
        if round_ >= options.min_rounds and perf_counter_ns() - began > options.budget_s * 1e9:
            break
        for which in (0, 1) if round_ % 2 == 0 else (1, 0):
            start = perf_counter_ns()
            executor.run(program, plans[which], inputs)
            samples[which].append((perf_counter_ns() - start) / 1e3)
            yield
    return Comparison(reduce_samples(samples[0]), reduce_samples(samples[1]), max_abs, max_rel)


def errors(got: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> tuple[float, float]:
    """Largest absolute error over all outputs, and largest relative to its output's maximum.

    A NaN or infinity must stand in the same place in both; elsewhere it counts as an infinite
    error.
    """
    max_abs = max_rel = 0.0
    for name, expected in reference.items():
        want, have = expected.double().flatten(), got[name].double().flatten()
        same = (want == have) | (want.isnan() & have.isnan())
        gap = torch.where(same, 0.0, (want - have).abs()).nan_to_num(nan=float("inf"))
        largest = want[want.isfinite()].abs().max().item() if want.isfinite().any() else 0.0
        worst = gap.max().item() if gap.numel() else 0.0
        max_abs = max(max_abs, worst)
        max_rel = max(max_rel, worst / largest if largest else worst)
    return max_abs, max_rel
