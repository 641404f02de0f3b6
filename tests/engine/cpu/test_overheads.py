"""The fixed prices of stages, and units on fewer threads."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from braid.core.graph import Operator, OpGraph
from braid.core.measurement import StageOverheads
from braid.core.tensor import TensorType
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.lanes import Segment
from braid.engine.cpu.stage_timer import CpuStageTimer, measure_overheads
from braid.engine.device import AskedStage
from braid.engine.ops.kinds import operator
from braid.engine.program.work import estimated_profile
from braid.engine.runtime.yielding import no_pause
from braid.engine.timing.samples import TimerOptions
from tests.engine.cpu.executors import executor_of, on_kernels
from tests.engine.timing.running import finish

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
