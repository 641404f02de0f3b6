"""Plans captured and run on the recording device, against the plain interpreter."""

import contextlib
import gc
from collections.abc import Callable
from functools import partial

import pytest
import torch

from braid.core.errors import DeviceLost, DeviceOutOfMemory
from braid.core.plan import sequential_plan
from braid.engine.cuda.driver.interface import ORIGIN
from braid.engine.cuda.executor import UPLOADS, CudaExecutor
from braid.engine.cuda.graphs.prepare import PreparedPlan
from braid.engine.passes.specialise import interpret
from braid.engine.program.kernel import Run
from braid.engine.runtime.yielding import YieldToRequests
from tests.engine.cuda.graphs import bound, random_graph, random_plan
from tests.engine.cuda.recording import CudaError, Operation, RecordingDriver, races

UNITS = 24
BOTH = pytest.mark.parametrize("barriers", [True, False], ids=["barriers", "events"])


def captured(seed: int, barriers: bool) -> tuple[RecordingDriver, CudaExecutor, PreparedPlan]:
    program = bound(*random_graph(seed, UNITS))
    driver = RecordingDriver(seed)
    executor = CudaExecutor(driver)
    prepared = executor.prepare(program, random_plan(program, seed, barriers=barriers))
    assert not prepared.eager_because
    return driver, executor, prepared


def x(seed: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(6, 6, generator=torch.Generator().manual_seed(seed))}


def check(got: dict[str, torch.Tensor], prepared: PreparedPlan, seed: int) -> None:
    program = prepared.program
    for name, expected in interpret(program.graph, program.constants(), x(seed)).items():
        torch.testing.assert_close(got[name], expected, rtol=1e-4, atol=1e-4)


@BOTH
@pytest.mark.parametrize("seed", range(8))
def test_any_order_that_the_events_allow_gives_the_interpreter_s_numbers(
    seed: int, barriers: bool
) -> None:
    _, executor, prepared = captured(seed, barriers)

    for run in range(3):
        check(executor.run(prepared, x(run)), prepared, run)


@BOTH
@pytest.mark.parametrize("seed", range(8))
def test_no_unordered_kernels_touch_the_same_block(seed: int, barriers: bool) -> None:
    driver, executor, prepared = captured(seed, barriers)
    executor.run(prepared, x(0))

    assert races(driver.captures[-1].operations) == []
    assert races(driver.operations) == [], "warm-up, copies and replays"


@BOTH
def test_launches_keep_the_order_of_the_plan(barriers: bool) -> None:
    program = bound(*random_graph(1, UNITS))
    plan = random_plan(program, 1, barriers=barriers)
    driver = RecordingDriver()
    CudaExecutor(driver).prepare(program, plan)

    inner = {unit for units in plan.merges for unit in units[1:]}
    together = {units[0]: units for units in plan.merges}
    expected = [
        program.unit(together.get(launch.unit, (launch.unit,))).kernel.run
        for launch in plan.launches
        if launch.unit not in inner
    ]
    launched = [o.run for o in driver.captures[-1].operations if o.kind == "launch"]
    assert launched[: len(expected)] == expected


@pytest.mark.parametrize("seed", range(5))
def test_a_sequential_plan_reuses_memory_on_one_stream_without_events(seed: int) -> None:
    program = bound(*random_graph(seed, UNITS))
    driver = RecordingDriver()
    executor = CudaExecutor(driver)

    prepared = executor.prepare(program, sequential_plan(UNITS))

    assert {o.stream.index for o in driver.captures[-1].operations} == {ORIGIN}
    assert len({b.number for o in launched(driver) for b in (w.block for w in o.writes)}) < UNITS
    check(executor.run(prepared, x(0)), prepared, 0)


def launched(driver: RecordingDriver) -> list[Operation]:
    return [o for o in driver.captures[-1].operations if o.kind == "launch"]


def test_plans_share_a_pool_and_keep_their_outputs_apart() -> None:
    program = bound(*random_graph(3, UNITS))
    driver = RecordingDriver(3)
    executor = CudaExecutor(driver)
    plans = [random_plan(program, seed, barriers=seed % 2 == 0) for seed in range(4)]
    prepared = [executor.prepare(program, plan) for plan in plans[:-1]]
    before = driver.memory().reserved
    prepared.append(executor.prepare(program, plans[-1]))
    grown = driver.memory().reserved - before

    flights = [executor.start(ready, x(run)) for run, ready in enumerate(prepared)]
    outputs = [flight.finish() for flight in flights]

    for run, ready in enumerate(prepared):
        check(outputs[run], ready, run)
    assert races(driver.operations) == [], "graphs of a pool never replay at the same time"
    assert grown < prepared[-1].peak_bytes


def test_activations_are_counted_without_workspaces_and_layouts_of_weights() -> None:
    program = bound(*random_graph(3, UNITS))
    plan = random_plan(program, 3, barriers=False)
    plain, laden = RecordingDriver(3), RecordingDriver(3)
    laden.workspace_bytes = 1 << 20
    layouts: dict[Run, torch.Tensor] = {}

    def make_layout(driver: RecordingDriver, run: Run) -> None:
        if run not in layouts:
            layouts[run] = driver.empty((1 << 12,), torch.uint8)

    laden.before_launch = make_layout

    peaks = [CudaExecutor(driver).prepare(program, plan).peak_bytes for driver in (plain, laden)]

    assert len(plan.launches) > 1 < len(laden.streams)
    assert peaks[1] == peaks[0] < len(layouts) << 12


def test_two_runs_of_a_plan_may_be_under_way() -> None:
    driver, executor, prepared = captured(5, barriers=False)

    first = executor.start(prepared, x(1))
    second = executor.start(prepared, x(2))

    check(first.finish(), prepared, 1)
    third = executor.start(prepared, x(3))
    check(second.finish(), prepared, 2)
    check(third.finish(), prepared, 3)
    assert races(driver.operations) == []


@BOTH
def test_inputs_in_page_locked_memory_are_not_staged(barriers: bool) -> None:
    driver, executor, prepared = captured(7, barriers)
    arena = torch.empty(3, 6, 6)
    executor.lock_pages(arena[:2])  # the third one lies beyond

    runs = []
    for run in range(3):
        arena[run] = x(run)["x"]
        runs.append(executor.start(prepared, {"x": arena[run]}))
        if run == 2:
            arena[run] = 0.0  # it was copied
        if run:  # two are under way
            check(runs[run - 1].finish(), prepared, run - 1)
            arena[run - 1] = 0.0
    check(runs[2].finish(), prepared, 2)
    assert races(driver.operations) == []


@BOTH
def test_requests_for_other_plans_are_answered_while_kernels_are_warmed_up(barriers: bool) -> None:
    driver, executor, served = captured(14, barriers=False)
    runs: list[int] = []

    class Serving(YieldToRequests):
        def __call__(self) -> bool:
            assert driver.capturing is None
            runs.append(len(runs))
            check(executor.run(served, x(len(runs))), served, len(runs))
            return True

    program = bound(*random_graph(15, UNITS))
    plan = random_plan(program, 15, barriers=barriers)
    prepared = executor.prepare(program, plan, pause=Serving())

    assert len(runs) > UNITS // 2
    assert races(driver.operations) == []
    check(executor.run(prepared, x(0)), prepared, 0)


def test_a_run_that_cannot_begin_does_not_hinder_those_that_can() -> None:
    _, executor, prepared = captured(5, barriers=False)
    first = executor.start(prepared, x(1))

    with pytest.raises(KeyError):
        executor.start(prepared, {})

    second = executor.start(prepared, x(2))
    check(first.finish(), prepared, 1)
    check(second.finish(), prepared, 2)


def test_a_run_of_another_plan_uploads_beside_the_one_under_way() -> None:
    driver, executor, prepared = captured(6, barriers=True)
    other = executor.prepare(prepared.program, sequential_plan(UNITS))
    first = executor.start(prepared, x(1))
    before = len(driver.operations)

    second = executor.start(other, x(2))

    upload = driver.operations[before]
    assert upload.kind == "copy"
    assert upload.stream.index == UPLOADS
    assert {o.kind for o in upload.after} <= {"synchronise"}, "it waits for nothing on the device"
    check(first.finish(), prepared, 1)
    check(second.finish(), prepared, 2)


@pytest.mark.parametrize(
    "fault",
    [
        CudaError("operation not permitted when stream is capturing", 900),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    ],
    ids=str,
)
def test_what_cannot_be_captured_runs_on_eager_streams_and_says_why(fault: RuntimeError) -> None:
    program = bound(*random_graph(7, UNITS))
    driver = RecordingDriver(7)

    def refuse_captures(driver: RecordingDriver, run: Run) -> None:
        if driver.capturing:
            raise fault

    driver.before_launch = refuse_captures
    executor = CudaExecutor(driver)

    prepared = executor.prepare(program, random_plan(program, 7, barriers=False))

    assert prepared.eager_because in str(fault)
    assert prepared.peak_bytes == 0
    for run in range(3):
        check(executor.run(prepared, x(run)), prepared, run)
    assert races(driver.operations) == []
    assert not driver.live_graphs


def test_out_of_memory_while_capturing_fails_the_plan_alone() -> None:
    driver, executor, prepared = captured(8, barriers=True)
    graphs, allocated = set(driver.live_graphs), driver.memory().allocated
    driver.before_launch = out_of_memory_in_captures

    with pytest.raises(DeviceOutOfMemory):
        executor.prepare(prepared.program, sequential_plan(UNITS))

    assert driver.live_graphs == graphs
    assert driver.memory().allocated == allocated
    driver.before_launch = lambda driver, run: None
    check(executor.run(prepared, x(0)), prepared, 0)
    check(
        executor.run(executor.prepare(prepared.program, sequential_plan(UNITS)), x(0)), prepared, 0
    )


@pytest.mark.parametrize(
    "fault",
    [
        partial(torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate 2.00 GiB."),
        partial(CudaError, "operation not permitted when stream is capturing", 900),
        partial(RuntimeError, "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    ],
    ids=["out of memory", "not permitted", "another library's"],
)
def test_a_failed_capture_leaves_no_tensors_to_the_garbage_collector(
    fault: Callable[[], RuntimeError],
) -> None:
    driver, executor, prepared = captured(8, barriers=True)

    def fail_late(driver: RecordingDriver, run: Run) -> None:
        if driver.capturing and len(driver.capturing.operations) > UNITS // 2:
            raise fault()

    driver.before_launch = fail_late
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(DeviceOutOfMemory):
            executor.prepare(prepared.program, sequential_plan(UNITS))
        allocated = driver.memory().allocated
        gc.collect()
    finally:
        gc.enable()

    assert allocated == driver.memory().allocated


def out_of_memory_in_captures(driver: RecordingDriver, run: Run) -> None:
    if driver.capturing and len(driver.capturing.operations) > UNITS // 2:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def test_room_is_made_before_a_plan_is_refused_for_want_of_memory() -> None:
    program = bound(*random_graph(9, UNITS))
    driver = RecordingDriver(9)
    executor = CudaExecutor(driver)
    driver.allocator.capacity_bytes = 64 << 10
    hoard = driver.empty((50 << 10,), torch.uint8)
    del hoard  # cached by the allocator, used by nobody

    prepared = executor.prepare(program, sequential_plan(UNITS))

    check(executor.run(prepared, x(0)), prepared, 0)


def test_the_pool_goes_with_its_last_plan_so_that_other_models_have_room() -> None:
    driver, executor, prepared = captured(9, barriers=False)
    other = executor.prepare(prepared.program, sequential_plan(UNITS))

    executor.release(prepared)
    assert driver.live_pools
    executor.release(other)

    assert not driver.live_pools
    assert driver.memory().reserved == driver.memory().allocated
    again = executor.prepare(prepared.program, sequential_plan(UNITS))
    check(executor.run(again, x(0)), again, 0)


def test_a_poisoned_context_is_told_from_a_lack_of_memory() -> None:
    driver, executor, prepared = captured(10, barriers=True)

    def fail(event: object = None) -> None:
        raise CudaError("an illegal memory access was encountered", 700)

    driver.synchronise = fail  # type: ignore[method-assign]

    with pytest.raises(DeviceLost, match="illegal memory access"):
        executor.run(prepared, x(0))


def test_a_closed_executor_leaves_nothing_on_the_device() -> None:
    driver, executor, prepared = captured(12, barriers=False)
    executor.run(prepared, x(0))

    executor.close()
    del prepared

    assert not driver.live_graphs
    assert not driver.live_pools
    assert driver.memory().reserved == 0
