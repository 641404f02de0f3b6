"""Measurements on the CPU as a worker asks for them; the stage timer on known latencies."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest
import torch

from braid.core.errors import WorkerFault
from braid.core.graph import Operator, OpGraph
from braid.core.measurement import StageLatency, StageOverheads
from braid.core.tensor import TensorType
from braid.engine.cpu.backend import CpuBackend
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.lanes import Segment
from braid.engine.cpu.stage_timer import LONG_US, SCALING, CpuStageTimer, measure_overheads
from braid.engine.device import AskedStage, FinishedRun
from braid.engine.ops.kinds import operator
from braid.engine.program.kernel import PackedWeights
from braid.engine.program.work import estimated_profile
from braid.engine.runtime.arrays import Arrays
from braid.engine.runtime.threads import usable_cpus
from braid.engine.runtime.yielding import no_pause
from braid.engine.timing.comparison import errors
from braid.engine.timing.recorded_inputs import Activations
from braid.engine.timing.samples import TimerOptions, reduce_samples
from tests.engine.cpu.executors import executor_of, on_kernels
from tests.engine.cpu.test_kernels import convolution_attributes, unit_graph
from tests.engine.timing.running import finish


def convolution(extent: int) -> tuple[OpGraph, dict[str, torch.Tensor]]:
    operands = {"x": torch.empty(1, 64, extent, extent), "w": torch.ones(64, 64, 3, 3), "b": None}
    return unit_graph("aten.convolution", operands, ["w"], convolution_attributes())


@pytest.mark.parametrize(("extent", "is_long"), [(224, True), (8, False)])
def test_a_long_unit_is_not_measured_on_one_thread(extent: int, is_long: bool) -> None:
    backend = CpuBackend(CpuExecutor(threads=1))
    graph, constants = convolution(extent)

    with torch.inference_mode():
        program = backend.bind(graph, constants, PackedWeights(), no_pause)

        def measured(threads: int | None) -> float:
            asked = AskedStage([[0]], threads)
            inputs = {"x": np.zeros((1, 64, extent, extent), np.float32)}
            timing, _ = finish(backend.measure(program, lambda: inputs, asked, no_pause))
            return timing.latency_us

        on_all, on_one = measured(None), measured(1)
    backend.close()

    assert (on_all > LONG_US) == is_long
    assert (on_one == SCALING * on_all) == is_long


def test_the_device_key_counts_the_cores_from_before_threads_were_pinned() -> None:
    cpus = usable_cpus()

    def key_of_a_pinned_device() -> str:
        backend = CpuBackend(CpuExecutor(1, cpus[:1]))
        try:
            return backend.device_key()
        finally:
            backend.close()

    with ThreadPoolExecutor(1) as pool:  # its thread stays pinned
        key = pool.submit(key_of_a_pinned_device).result()

    assert f":cores={len(cpus)}:" in key
    assert ":threads=1:" in key


class _Recorded:
    """Stands for a plan and for a model in another runtime: notes who runs it, and where to."""

    activation_bytes = None

    def __init__(self) -> None:
        self.runs: list[tuple[int, object]] = []

    def run_into(self, inputs: Arrays, outputs: Arrays) -> None:
        self.runs.append((threading.get_ident(), outputs))
        for array in outputs.values():
            array.fill(3.0)

    def begin(self, inputs: Arrays, outputs: Arrays) -> FinishedRun:
        self.run_into(inputs, outputs)
        return FinishedRun(outputs)


def test_contenders_run_on_the_calling_thread_into_the_same_memory_as_requests_do() -> None:
    backend = CpuBackend(CpuExecutor(threads=1))
    outputs = {"y": np.zeros(2)}

    for contend in (backend.contender, backend.whole_contender):
        recorded = _Recorded()
        contender = contend(cast(Any, recorded), outputs)
        for _ in range(2):
            assert contender.run({}, no_pause).outputs["y"].tolist() == [3.0, 3.0]
        assert recorded.runs == [(threading.get_ident(), outputs)] * 2
        assert all(given is outputs for _, given in recorded.runs)
    backend.close()


SPEC = TensorType("FP32", (4,))


@operator("test.threads")
def threads(x: torch.Tensor) -> torch.Tensor:
    seen.append(torch.get_num_threads())
    return x


seen: list[int] = []


executor = executor_of(threads=2, scope="function")


class ScriptedExecutor:
    """Stages take 10 us, 3 us more for each unit of a group, 7 us more for a further group."""

    threads = 2

    def stage(self, _: Any, segment: Segment, __: Any) -> Callable[[Any], tuple[int, int]]:
        longest, further = max(map(len, segment.lanes)), len(segment.lanes) - 1
        return lambda _: (0, 10_000 + 3_000 * longest + 7_000 * further)


def test_prices_are_what_a_stage_takes_besides_the_work_of_its_units() -> None:
    scripted: Any = ScriptedExecutor()

    prices, _ = finish(measure_overheads(scripted))

    assert prices == StageOverheads(stage_us=10.0, group_us=7.0, launch_us=3.0)


def test_prices_are_never_negative_and_measured_between_requests(executor: CpuExecutor) -> None:
    prices, yields = finish(measure_overheads(executor))

    assert min(prices.launch_us, prices.stage_us, prices.group_us) >= 0
    assert yields >= 5, "inference must get its turns"


def test_a_stage_can_be_timed_on_one_thread(executor: CpuExecutor) -> None:
    graph = OpGraph(
        "g", {"x": SPEC}, {"a": "a"}, {}, (Operator("a", "test.threads", ("x",), ("a",)),),
        {"a": SPEC},
    )  # fmt: skip
    program = on_kernels(graph, {})
    timer, inputs = CpuStageTimer(executor, 1 << 20, TimerOptions()), {"x": np.zeros(4, np.float32)}

    def threads_of(count: int | None) -> set[int]:
        seen.clear()
        finish(timer.measure(program, lambda: inputs, AskedStage([[0]], count), no_pause))
        return set(seen)

    threads_of(None)  # records the stage's inputs, with all threads

    assert (threads_of(1), threads_of(None)) == ({1}, {2})


def test_a_convolution_computes_and_a_relu_moves() -> None:
    image, weight = TensorType("FP32", (1, 64, 28, 28)), TensorType("FP32", (64, 64, 3, 3))
    graph = OpGraph(
        "g", {"x": image}, {"b": "b"}, {"w": weight},
        (
            Operator("a", "aten.convolution", ("x", "w"), ("a",)),
            Operator("b", "aten.relu", ("a",), ("b",)),
        ),
        {"a": image, "b": image},
    )  # fmt: skip

    convolution, relu = (estimated_profile(unit, graph) for unit in graph.operators)

    assert not convolution.memory_bound
    assert relu.memory_bound
    assert relu.demand == 2 * 4 * 64 * 28 * 28


@operator("test.sleep")
def sleep(x: torch.Tensor, *, ms: float) -> torch.Tensor:
    time.sleep(ms / 1e3)
    return x + 1


#   x ──> a (45 ms) ──> c (15 ms)      a and b are independent
#   └───> b (60 ms)
def sleepers() -> OpGraph:
    return OpGraph(
        "sleepers", {"x": SPEC}, {"b": "b", "c": "c"}, {},
        (
            Operator("a", "test.sleep", ("x",), ("a",), {"ms": 45.0}),
            Operator("b", "test.sleep", ("x",), ("b",), {"ms": 60.0}),
            Operator("c", "test.sleep", ("a",), ("c",), {"ms": 15.0}),
        ),
        dict.fromkeys("abc", SPEC),
    )  # fmt: skip


@pytest.mark.parametrize("groups", [[[0], [1]], [[0, 2], [1]], [[0, 2]], [[1]]])
def test_groups_overlap_and_members_of_a_group_do_not(
    executor: CpuExecutor, groups: list[list[int]]
) -> None:
    program = on_kernels(sleepers(), {})
    timer = CpuStageTimer(executor, 1 << 20, TimerOptions())
    inputs = {"x": np.zeros(4, np.float32)}

    seen: list[float] = []
    while not any(55_000 <= latency_us < 96_000 for latency_us in seen):
        stage = AskedStage(groups)
        timing, yields = finish(timer.measure(program, lambda: inputs, stage, no_pause))
        seen.append(timing.latency_us)
        assert yields > timing.repeats, "inference must get a turn after each sample"
        # One after the other: 105 or 120 ms, always. The time in which this process is stopped, or
        # has no core, counts.
        assert len(seen) < 20, seen


def test_activations_beyond_the_budget_are_made_up_with_the_same_layout(
    executor: CpuExecutor,
) -> None:
    program = on_kernels(sleepers(), {})

    activations = Activations(program, {"x": np.zeros(4, np.float32)}, executor, budget_bytes=0)
    a = activations.environment((2,))[program.slots["a"]]

    assert a is not None
    assert a.shape == (4,)


def test_the_median_is_unmoved_by_one_outlier() -> None:
    timing = reduce_samples([10.0, 10.0, 10.0, 10.0, 500.0])

    assert timing.latency_us == 10.0
    assert timing.spread == 0.0


@pytest.mark.parametrize("latency_us", [0.0, -1.0, float("nan"), float("inf")])
def test_a_latency_that_cannot_be_is_never_made(latency_us: float) -> None:
    with pytest.raises(WorkerFault, match="cannot be"):
        StageLatency(latency_us, 0.0, 1)


def test_errors_count_nan_in_the_wrong_place_as_infinite() -> None:
    reference = {"y": np.array([1.0, float("nan"), -4.0])}

    assert errors({"y": np.array([1.0, float("nan"), -4.2])}, reference)[1] == pytest.approx(0.05)
    assert errors({"y": np.array([1.0, 2.0, -4.0])}, reference)[0] == float("inf")
    assert errors({"y": np.array([float("nan")] * 3)}, reference)[0] == float("inf")
