"""Priority of a plan's origin stream: captured with and without, the faster one is kept.

    plan ──> all streams alike │ origin urgent ──replays in turns──> the faster

A kernel keeps the priority of the stream it was captured on, and so the critical path, which is on
the origin, can go first wherever blocks of several kernels wait for a multiprocessor.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from braid.core.errors import DeviceOutOfMemory
from braid.core.plan import StreamPlan
from braid.engine.cuda.executor import CudaExecutor
from braid.engine.cuda.graphs.prepare import PreparedPlan
from braid.engine.program.program import Program
from braid.engine.runtime.yielding import YieldToRequests, no_pause

_ROUNDS = 7
_GAIN = 0.01
"""Least gain, as a fraction, for which the urgent variant is kept: less may be chance."""


def prepare_fastest(
    executor: CudaExecutor, program: Program, plan: StreamPlan, pause: YieldToRequests = no_pause
) -> PreparedPlan:
    """Prepare a plan; with several streams also with an urgent origin, and free the slower variant.

    Raises:
        See ``CudaExecutor.prepare``; too little memory for a second variant is no error.
    """
    first = executor.prepare(program, plan, pause=pause)
    if first.eager_because or len({launch.stream for launch in plan.launches}) < 2:
        return first
    variants = [first]
    try:
        variants += _urgent_variant(executor, program, plan, pause)
        best = _fastest(executor, variants) if len(variants) > 1 else first
    except BaseException:
        for prepared in variants:
            executor.release(prepared)
        raise
    for prepared in variants:
        if prepared is not best:
            executor.release(prepared)
    return best


def _urgent_variant(
    executor: CudaExecutor, program: Program, plan: StreamPlan, pause: YieldToRequests
) -> list[PreparedPlan]:
    """The plan with an urgent origin, if memory suffices and it can be captured."""
    try:
        prepared = executor.prepare(program, plan, urgent_origin=True, pause=pause)
    except DeviceOutOfMemory:
        return []
    if prepared.eager_because:
        executor.release(prepared)
        return []
    return [prepared]


def _fastest(executor: CudaExecutor, variants: Sequence[PreparedPlan]) -> PreparedPlan:
    """The fastest by the median of replays in turns; the first unless another clearly is."""
    samples: list[list[float]] = [[] for _ in variants]
    for _ in range(_ROUNDS):
        for taken, prepared in zip(samples, variants, strict=True):
            taken.append(executor.device_us(prepared))
    times_us = [median(taken) for taken in samples]
    best = min(range(len(variants)), key=times_us.__getitem__)
    return variants[best if times_us[best] <= times_us[0] * (1 - _GAIN) else 0]
