"""Memory of plans: what is counted, what a failure leaves, what comes and goes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from braid.core.errors import DeviceOutOfMemory
from braid.core.plan import Launch, StreamPlan
from braid.engine.cuda.driver import faults
from braid.engine.cuda.driver.faults import CaptureFailed
from braid.engine.cuda.driver.interface import ORIGIN, MemoryUse
from braid.engine.cuda.executor import CudaExecutor
from braid.engine.cuda.graphs import prepare
from braid.engine.cuda.graphs.prepare import capturing
from tests.engine.cuda.graphs import random_plan
from tests.engine.cuda.test_on_gpu import SIDE_BY_SIDE, random_program, with_kernel, x
from tests.engine.cuda.test_release import chainable
from tests.gpu_dry import device
from tests.gpu_dry.launches import NotingDriver

MIB = 1 << 20
GRAPHS = 2000


def check_activations() -> None:
    """Four products of 6 x 6 side by side: kilobytes, whatever cuBLAS takes for each stream."""
    driver = NotingDriver()  # whose streams have no workspace yet
    program = with_kernel(chainable("xx", "xx", "xx", "xx"), torch.mm, 0, 1, 2, 3)
    plan = StreamPlan(tuple(Launch(unit, unit) for unit in range(4)), 4)
    before = driver.memory().allocated

    cost = CudaExecutor(driver).prepare(program, plan).cost

    assert driver.memory().allocated - before > MIB, "cuBLAS has a workspace on each stream"
    assert 5 * 6 * 6 * 4 <= cost.peak_bytes < MIB


def test_activations_are_counted_without_workspaces() -> None:
    check_activations()


def test_workspaces_counted_as_activations_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.cuda.memory_allocated()

    def since_before_the_streams(_: MemoryUse, after: MemoryUse, __: int) -> int:
        return after.peak_allocated - before

    monkeypatch.setattr(prepare, "_peak_bytes", since_before_the_streams)
    with pytest.raises(AssertionError, match="peak_bytes"):
        check_activations()


def refused() -> None:
    torch.cuda.synchronize()


def failed_in_a_library() -> None:
    raise RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED")


def check_failed_capture(driver: NotingDriver, fail: Callable[[], None]) -> None:
    """Nothing that was made in the capture lives on, not even as long as its error."""
    streams = driver.stream(ORIGIN), driver.stream(1)
    pool = driver.pool()
    before = driver.memory().allocated

    def work() -> None:
        held = torch.ones(MIB, device=driver.device)
        fail()
        held.add_(1)

    with pytest.raises(CaptureFailed) as caught, capturing(driver, streams, pool):
        work()

    assert driver.memory().allocated == before, caught.value
    driver.release_pool(pool)


@pytest.mark.parametrize("fail", [refused, failed_in_a_library])
def test_a_failed_capture_keeps_no_tensors(driver: NotingDriver, fail: Callable[[], None]) -> None:
    check_failed_capture(driver, fail)


@pytest.mark.parametrize("fail", [refused, failed_in_a_library])
def test_a_failed_capture_that_keeps_its_tensors_is_caught(
    driver: NotingDriver, fail: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (faults, prepare):
        monkeypatch.setattr(module, "without_frames", lambda error: error)
    with pytest.raises(AssertionError):
        check_failed_capture(driver, fail)


def test_lack_of_memory_fails_one_plan_and_leaves_nothing(
    executor: CudaExecutor, driver: NotingDriver
) -> None:
    program = random_program(3, driver)
    plan = random_plan(program, 3, barriers=False)
    kept = executor.prepare(program, plan)

    def greedy(a: Tensor, b: Tensor) -> Tensor:
        torch.empty(512 * MIB, dtype=torch.uint8, device=a.device)
        return a + b

    hungry = with_kernel(chainable("xx", "xx", "01"), greedy, 1)
    driver.trim()
    before, allocated = device.counts(), driver.memory().allocated
    with device.only(256 * MIB), pytest.raises(DeviceOutOfMemory):
        executor.prepare(hungry, SIDE_BY_SIDE)

    driver.trim()
    after = device.counts()
    assert driver.memory().allocated == allocated
    assert after["used_bytes"] == before["used_bytes"]
    executor.run(kept, x(0))
    assert not executor.prepare(hungry, SIDE_BY_SIDE).eager_because


def test_graphs_come_and_go_without_growth(executor: CudaExecutor, driver: NotingDriver) -> None:
    program = chainable("xx", "0x", "0x", "12")
    plan = StreamPlan((Launch(0, 0), Launch(1, 0), Launch(2, 1, (0,)), Launch(3, 0, (2,))), 2)
    executor.prepare(program, plan)  # keeps the pool
    executor.release(executor.prepare(program, plan))
    before, memory = device.counts(), driver.memory()

    for _ in range(GRAPHS):
        executor.release(executor.prepare(program, plan))

    after = device.counts()
    living = ("used_bytes", "blocks", "pinned", "captures", "graphs", "executables", "streams")
    assert {name: after[name] for name in living} == {name: before[name] for name in living}
    assert driver.memory() == memory
    assert after["events"] <= before["events"] + 8, "torch keeps some for the next ones"
