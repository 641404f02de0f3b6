"""Captures of random plans: their order is the plan's, and what CUDA refuses leaves nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from braid.core.plan import StreamPlan
from braid.engine.cuda.executor import CudaExecutor
from tests.engine.cuda.graphs import random_plan
from tests.engine.cuda.test_on_gpu import SIDE_BY_SIDE, random_program, with_kernel, x
from tests.engine.cuda.test_release import chainable
from tests.gpu_dry import device
from tests.gpu_dry.launches import NotingDriver

Units = tuple[int, ...]
"""Of one call: merged ones, or one."""


def order_of(plan: StreamPlan) -> dict[Units, set[Units]]:
    """Of each call, in launch order, those that streams, waits and barriers put before it."""
    call_of: dict[int, Units] = {unit: units for units in plan.merges for unit in units}
    stream_of = {launch.unit: launch.stream for launch in plan.launches}
    waits_of = {launch.unit: launch.waits for launch in plan.launches}
    before: dict[Units, set[Units]] = {}
    segment_start: set[Units] = set()
    for place, launch in enumerate(plan.launches):
        if place in plan.barriers:
            segment_start = set(before)
        call = call_of.setdefault(launch.unit, (launch.unit,))
        if call in before:
            continue
        direct = {other for other in before if stream_of[other[0]] == launch.stream}
        direct |= segment_start | {call_of[unit] for member in call for unit in waits_of[member]}
        before[call] = direct.union(*(before[other] for other in direct))
    return before


@pytest.mark.parametrize("barriers", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_a_graph_has_the_order_of_its_plan_and_no_other(
    executor: CudaExecutor, driver: NotingDriver, seed: int, barriers: bool
) -> None:
    program = random_program(seed, driver)
    plan = random_plan(program, seed, barriers=barriers)
    strays = device.counts()["strays"]

    prepared = executor.prepare(program, plan)

    assert not prepared.eager_because
    assert device.counts()["strays"] == strays, "all work went into the capture"
    expected = order_of(plan)
    launched = dict(zip(expected, driver.launches, strict=False))  # then come dense results
    kernels = {call: launch for call, launch in launched.items() if launch.operations}
    for late in kernels:
        seen = {early for early in kernels if driver.comes_before(kernels[early], kernels[late])}
        assert seen - {late} == expected[late] & set(kernels)


def read_on_host(a: Tensor, _: torch.cuda.Stream) -> None:
    a.sum().item()


def copy_to_host(a: Tensor, _: torch.cuda.Stream) -> None:
    a.cpu()


def synchronise(*_: object) -> None:
    torch.cuda.synchronize()


def ask_an_event(*_: object) -> None:
    event = torch.cuda.Event()
    event.record()
    event.query()


def wait_for_what_is_outside(_: Tensor, side: torch.cuda.Stream) -> None:
    event = torch.cuda.Event()
    event.record(side)
    event.wait()


def leave_work_unjoined(a: Tensor, side: torch.cuda.Stream) -> None:
    event = torch.cuda.Event()
    event.record()
    event.wait(side)
    with torch.cuda.stream(side):
        a + 1


FORBIDDEN = (
    read_on_host,
    copy_to_host,
    synchronise,
    ask_an_event,
    wait_for_what_is_outside,
    leave_work_unjoined,
)


@pytest.mark.parametrize("forbidden", FORBIDDEN, ids=lambda forbidden: forbidden.__name__)
def test_what_cuda_refuses_in_a_capture_runs_eagerly_and_the_next_one_is_captured(
    executor: CudaExecutor,
    driver: NotingDriver,
    forbidden: Callable[[Tensor, torch.cuda.Stream], None],
) -> None:
    side = driver.stream(7).handle  # of no plan here

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            forbidden(a, side)
        return a + b

    plain = chainable("xx", "xx", "01")
    refused = with_kernel(plain, kernel, 1)

    def serve() -> tuple[int, ...]:
        prepared = executor.prepare(refused, SIDE_BY_SIDE)
        assert prepared.eager_because
        for seed in range(3):
            executor.run(prepared, x(seed))
        executor.release(prepared)
        driver.trim()
        counts = device.counts()
        return driver.memory().allocated, *(counts[name] for name in LIVING)

    before = serve()

    assert [serve() for _ in range(5)] == [before] * 5
    assert not executor.prepare(plain, SIDE_BY_SIDE).eager_because


LIVING = ("captures", "graphs", "executables", "used_bytes")
