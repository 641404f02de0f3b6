"""What may be done about contention, beside the plan: tried, measured, and kept if faster.

    plan ──> as it is │ origin urgent │ multiprocessors parted ──replays in turns──> the fastest

A kernel keeps the priority of the stream it was captured on, and so the critical path, which is on
the origin, can go first wherever blocks of several kernels wait for a multiprocessor. Parting the
device keeps the other streams off some of it altogether.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from braid.core.errors import DeviceOutOfMemory
from braid.core.plan import StreamPlan
from braid.engine.cuda.driver.interface import Driver, Partition
from braid.engine.cuda.executor import CudaExecutor
from braid.engine.cuda.graphs.partition import GRANULE
from braid.engine.cuda.graphs.prepare import PLAIN, Levers, PreparedPlan
from braid.engine.program.program import Program
from braid.engine.runtime.yielding import YieldToRequests, no_pause

_ROUNDS = 7
_GAIN = 0.01
"""A lever is pulled only if that much faster: less may be chance."""

_PARTS = (0.5, 0.75)  # of the multiprocessors for the origin


def offered_levers(driver: Driver, plan: StreamPlan, *, partitions: bool) -> list[Levers]:
    """What can be tried for a plan on a device; doing nothing comes first.

    Args:
        driver: of the device.
        plan: with one stream there is nothing to contend for.
        partitions: whether to part the device, where it can be.
    """
    found = [PLAIN]
    if len({launch.stream for launch in plan.launches}) < 2:
        return found
    found.append(Levers(urgent_origin=True))
    for part in _PARTS if partitions else ():
        count = int(driver.multiprocessors * part) // GRANULE * GRANULE
        partition = Partition(count)
        if not driver.partition_refusal(partition):
            found.append(Levers(partition=partition))
    return found


def prepare_fastest(
    executor: CudaExecutor,
    program: Program,
    plan: StreamPlan,
    offered: Sequence[Levers],
    pause: YieldToRequests = no_pause,
) -> PreparedPlan:
    """Prepare a plan with each of the levers, keep the fastest and free the others.

    Raises:
        See ``CudaExecutor.prepare``; want of memory for a second variant is none.
    """
    first = executor.prepare(program, plan, offered[0], pause)
    if first.eager_because:
        return first
    variants = [first]
    try:
        for levers in offered[1:]:
            variants += _variant(executor, program, plan, levers, pause)
        best = _fastest(executor, variants) if len(variants) > 1 else first
    except BaseException:
        for prepared in variants:
            executor.release(prepared)
        raise
    for prepared in variants:
        if prepared is not best:
            executor.release(prepared)
    return best


def _variant(
    executor: CudaExecutor,
    program: Program,
    plan: StreamPlan,
    levers: Levers,
    pause: YieldToRequests,
) -> list[PreparedPlan]:
    """The plan with these levers, if there is room and it can be captured."""
    try:
        prepared = executor.prepare(program, plan, levers, pause)
    except DeviceOutOfMemory:
        return []
    if prepared.eager_because:
        executor.release(prepared)
        return []
    return [prepared]


def _fastest(executor: CudaExecutor, variants: Sequence[PreparedPlan]) -> PreparedPlan:
    """By the median of replays in turns; the first unless another is clearly faster."""
    samples: list[list[float]] = [[] for _ in variants]
    for _ in range(_ROUNDS):
        for taken, prepared in zip(samples, variants, strict=True):
            taken.append(executor.device_us(prepared))
    times_us = [median(taken) for taken in samples]
    best = min(range(len(variants)), key=times_us.__getitem__)
    return variants[best if times_us[best] <= times_us[0] * (1 - _GAIN) else 0]
