"""The torch driver on a real GPU: capture, memory, overlap, faults, timing."""

import mmap
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from braid.core.errors import DeviceOutOfMemory
from braid.core.plan import Launch, StreamPlan, sequential_plan
from braid.engine.cuda.driver.interface import ORIGIN
from braid.engine.cuda.driver.torch_driver import TorchDriver
from braid.engine.cuda.executor import CudaExecutor
from braid.engine.cuda.stage_timer import CudaStageTimer
from braid.engine.device import AskedStage
from braid.engine.ops.dtypes import arrays_of
from braid.engine.passes.specialise import interpret
from braid.engine.program.kernel import Kernel, Run
from braid.engine.program.program import BoundUnit, Program
from braid.engine.runtime.yielding import no_pause
from braid.engine.timing.samples import TimerOptions
from tests.engine.cuda.graphs import bound, random_graph, random_plan
from tests.engine.cuda.test_release import chainable
from tests.engine.timing.running import finish

pytestmark = pytest.mark.gpu

UNITS = 24
ARENA = mmap.mmap(-1, 1 << 20)
NAP_CYCLES = 400_000  # about 0.2 ms
SIDE_BY_SIDE = StreamPlan((Launch(0, 0), Launch(1, 1), Launch(2, 0, (1,))), 2)


@pytest.fixture(scope="module")
def driver() -> TorchDriver:
    return TorchDriver(0)


@pytest.fixture
def executor(driver: TorchDriver) -> Iterator[CudaExecutor]:
    made = CudaExecutor(driver)
    yield made
    made.close()


def random_program(seed: int, driver: TorchDriver) -> Program:
    graph, constants = random_graph(seed, UNITS)
    return bound(graph, {name: tensor.to(driver.device) for name, tensor in constants.items()})


def x(seed: int) -> dict[str, Tensor]:
    return {"x": torch.randn(6, 6, generator=torch.Generator().manual_seed(seed))}


def check(got: dict[str, Tensor], program: Program, seed: int) -> None:
    constants = {name: tensor.cpu() for name, tensor in program.constants().items()}
    for name, expected in interpret(program.graph, constants, x(seed)).items():
        torch.testing.assert_close(got[name], expected, rtol=1e-3, atol=1e-3)


def with_kernel(program: Program, run: Run, *units: int) -> Program:
    """The program with another kernel for some units."""
    kernels = list(program.units)
    for unit in units:
        known = kernels[unit]
        kernels[unit] = BoundUnit(Kernel("test", run), known.inputs, known.outputs, known.work_us)
    return Program(program.graph, tuple(kernels), program.slots, program.template, False,
                   program.binding)  # fmt: skip


def nap(a: Tensor, b: Tensor) -> Tensor:
    torch.cuda._sleep(NAP_CYCLES)
    return a + b


#   x ─┬─> 0 (nap) ─> 2
#      └─> 1 (nap) ───┘
NAPPING = with_kernel(chainable("xx", "xx", "01"), nap, 0, 1)


@pytest.mark.parametrize("barriers", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_captured_plans_give_the_interpreter_s_numbers(
    executor: CudaExecutor, driver: TorchDriver, seed: int, barriers: bool
) -> None:
    program = random_program(seed, driver)
    prepared = executor.prepare(program, random_plan(program, seed, barriers=barriers))
    assert not prepared.eager_because

    first = executor.start(prepared, x(0))
    for run in range(1, 20):  # the next one always under way
        following = executor.start(prepared, x(run))
        check(first.finish(), program, run - 1)
        first = following
    first.finish()


def test_inputs_are_copied_from_page_locked_memory(
    executor: CudaExecutor, driver: TorchDriver
) -> None:
    program = random_program(52, driver)
    prepared = executor.prepare(program, random_plan(program, 52, barriers=False))
    arena = torch.frombuffer(ARENA, dtype=torch.float32)
    executor.lock_pages(arena)
    slots = [arena[64 * i : 64 * i + 36].view(6, 6) for i in range(20)]

    first = None
    for run, slot in enumerate(slots):
        slot.copy_(x(run)["x"])
        following = executor.start(prepared, {"x": slot})
        if first is not None:
            check(first.finish(), program, run - 1)
            slots[run - 1].zero_()
        first = following
    assert first is not None
    check(first.finish(), program, len(slots) - 1)


def test_memory_that_cannot_be_page_locked_is_said_once(driver: TorchDriver) -> None:
    memory = torch.frombuffer(mmap.mmap(-1, 1 << 16), dtype=torch.uint8)
    driver.lock_pages(memory)

    with pytest.raises(RuntimeError):
        driver.lock_pages(memory)

    torch.ones(4, device=driver.device).add_(1)
    driver.synchronise()


def test_plans_of_one_pool_do_not_disturb_each_other(
    executor: CudaExecutor, driver: TorchDriver
) -> None:
    program = random_program(50, driver)
    plans = [random_plan(program, seed, barriers=seed % 2 == 0) for seed in range(6)]
    prepared = [executor.prepare(program, plan) for plan in plans]

    for run in range(10):
        flights = [executor.start(ready, x(run)) for ready in prepared]
        for flight in flights:
            check(flight.finish(), program, run)


def test_two_streams_overlap_in_one_replay(executor: CudaExecutor) -> None:
    one_after_the_other = executor.prepare(NAPPING, sequential_plan(3))
    beside = executor.prepare(NAPPING, SIDE_BY_SIDE)
    for prepared in (one_after_the_other, beside):
        executor.run(prepared, x(0))

    ratio = executor.device_us(one_after_the_other) / executor.device_us(beside)

    assert 1.7 < ratio < 2.2


def test_graphs_come_and_go_without_growth(executor: CudaExecutor, driver: TorchDriver) -> None:
    program = random_program(51, driver)
    plan = random_plan(program, 51, barriers=False)
    executor.release(executor.prepare(program, plan))
    before, (free, _) = driver.memory(), torch.cuda.mem_get_info()

    for _ in range(200):
        executor.release(executor.prepare(program, plan))

    assert driver.memory().allocated == before.allocated
    assert free - torch.cuda.mem_get_info()[0] < 64 << 20


def test_what_reads_from_the_device_cannot_be_captured_and_runs_eagerly(
    executor: CudaExecutor, driver: TorchDriver
) -> None:
    def peek(a: Tensor, b: Tensor) -> Tensor:
        return a + b if a.sum().item() == a.sum().item() else a

    program = with_kernel(chainable("xx", "xx", "01"), peek, 1)

    prepared = executor.prepare(program, SIDE_BY_SIDE)

    assert prepared.eager_because
    for run in range(3):
        check(executor.run(prepared, x(run)), program, run)
    assert not executor.prepare(NAPPING, SIDE_BY_SIDE).eager_because, "the next one is captured"


def test_out_of_memory_fails_one_plan_alone(executor: CudaExecutor, driver: TorchDriver) -> None:
    _, size = torch.cuda.mem_get_info()

    def greedy(a: Tensor, b: Tensor) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            torch.empty(size, dtype=torch.uint8, device=a.device)
        return a + b

    with pytest.raises(DeviceOutOfMemory):
        executor.prepare(with_kernel(chainable("xx", "xx", "01"), greedy, 1), SIDE_BY_SIDE)

    prepared = executor.prepare(NAPPING, SIDE_BY_SIDE)
    assert not prepared.eager_because
    check(executor.run(prepared, x(1)), NAPPING, 1)


def test_stages_are_timed_as_they_overlap(driver: TorchDriver) -> None:
    timer, inputs = CudaStageTimer(driver, 1 << 20, TimerOptions()), arrays_of(x(0))
    one, chain, pair = (
        finish(timer.measure(NAPPING, lambda: inputs, AskedStage(groups), no_pause))[0].latency_us
        for groups in ([[0]], [[0, 1]], [[0], [1]])
    )
    timer.forget()

    assert chain == pytest.approx(2 * one, rel=0.1)
    assert pair == pytest.approx(one, rel=0.1)


def test_a_failing_kernel_is_a_lost_device() -> None:
    """In a process of its own, which is lost with it."""
    done = subprocess.run([sys.executable, "-c", _POISON], capture_output=True, text=True)

    assert done.stdout.strip() == "DeviceLost", done.stderr[-2000:]


_POISON = """
import torch
from braid.core.errors import BraidError
from braid.engine.cuda.driver.faults import classified
from braid.engine.cuda.driver.torch_driver import TorchDriver

driver = TorchDriver(0)
try:
    with classified("trying"):
        torch.zeros(4, device="cuda")[torch.full((4,), 99, device="cuda")]
        driver.synchronise()
except BraidError as error:
    print(type(error).__name__)
"""


def test_the_origin_is_current_between_calls(driver: TorchDriver) -> None:
    driver.launch(driver.stream(3), torch.relu, [torch.ones(4, device=driver.device)])
    driver.synchronise()

    assert torch.cuda.current_stream() == driver.stream(ORIGIN).handle
