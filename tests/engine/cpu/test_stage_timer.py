"""The stage timer on stages whose latency is known, because they sleep."""

import time

import numpy as np
import pytest
import torch

from braid.core.errors import WorkerFault
from braid.core.graph import Operator, OpGraph
from braid.core.measurement import StageLatency
from braid.core.tensor import TensorType
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.stage_timer import CpuStageTimer
from braid.engine.device import AskedStage
from braid.engine.ops.kinds import operator
from braid.engine.runtime.yielding import no_pause
from braid.engine.timing.comparison import errors
from braid.engine.timing.recorded_inputs import Activations
from braid.engine.timing.samples import TimerOptions, reduce_samples
from tests.engine.cpu.executors import executor_of, on_kernels
from tests.engine.timing.running import finish

SPEC = TensorType("FP32", (4,))


@operator("test.sleep")
def sleep(x: torch.Tensor, *, ms: float) -> torch.Tensor:
    time.sleep(ms / 1e3)
    return x + 1


executor = executor_of(threads=2, scope="function")


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
