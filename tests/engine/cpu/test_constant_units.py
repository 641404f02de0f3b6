"""Units without inputs: tensors too large to fold, made when they are needed."""

import numpy as np
import onnx
import pytest
import torch

from braid.core.measurement import DeviceFacts
from braid.core.precision import BF16
from braid.core.schedule import Stage
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cuda.executor import CudaExecutor
from braid.engine.passes.precision import in_precision
from braid.engine.passes.specialise import interpret
from braid.engine.program.kernel import PackedWeights
from braid.engine.program.program import Binding, bind
from braid.engine.program.work import estimated_work_us
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import plan
from tests.engine.cpu.executors import executor_of, in_lanes, on_kernels, run
from tests.engine.cuda.graphs import RegistryKernels
from tests.engine.cuda.recording import RecordingDriver, races
from tests.engine.onnx.oracle import static_graph, through_onnxruntime
from tests.models.graphs import from_x

EXTENT = 2100  # squared more elements than an import folds
THREADS = 2


class UnitCost:
    """A stage takes as long as its longest group has units."""

    def stage_latency_us(self, stage: Stage) -> float:
        return float(max(map(len, stage.groups)))


#   weight ──relu──┐
#   x ─────────> MatMul ─┐
#   other ───────────> Add ──> y       weight, other: ConstantOfShape
def constants() -> onnx.ModelProto:
    return from_x(
        """weight = ConstantOfShape<value = float[1] {0.01}>(square)  kept = Relu(weight)
        product = MatMul(x, kept)  other = ConstantOfShape<value = float[1] {-1.0}>(square)
        y = Add(product, other)""",
        f"n, {EXTENT}",
        square=[EXTENT, EXTENT],
    )


executor = executor_of(threads=THREADS, scope="function")


@pytest.mark.parametrize("precision", ["fp32", BF16])
def test_they_run_under_plans_of_one_stream_and_of_several(
    precision: str, executor: CpuExecutor
) -> None:
    made = constants()
    x = np.random.default_rng(0).standard_normal((1, EXTENT)).astype(np.float32)
    inputs = {"x": torch.from_numpy(x)}
    graph, tensors = in_precision(*static_graph(made, inputs), precision, PackedWeights())
    program = on_kernels(graph, tensors, THREADS)
    expected = through_onnxruntime(made, {"x": x})["y"]

    assert any(not unit.inputs for unit in graph.operators)
    for planner in ("sequential", "greedy", "lios"):
        found = plan(graph, UnitCost(), PlannerSettings.parse(planner), DeviceFacts()).plan
        layout = in_lanes(program, THREADS, found)
        for _ in range(2):
            y = run(executor, program, layout, inputs)["y"]
            np.testing.assert_allclose(y.numpy(), expected, rtol=0, atol=0.2)


def test_they_are_captured_without_races_and_measured_as_others() -> None:
    inputs = {"x": torch.ones(1, EXTENT)}
    graph, tensors = static_graph(constants(), inputs)
    program = bind(graph, tensors, Binding(RegistryKernels(), 1, PackedWeights()))
    expected = interpret(graph, tensors, inputs)["y"]
    found = plan(graph, UnitCost(), PlannerSettings.parse("greedy"), DeviceFacts()).plan
    driver = RecordingDriver()
    on_gpu = CudaExecutor(driver)
    prepared = on_gpu.prepare(program, found)
    y = on_gpu.run(prepared, inputs)["y"].clone()
    on_gpu.close()

    assert not prepared.eager_because
    assert races(driver.captures[-1].operations) == []
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    assert all(estimated_work_us(unit, graph) > 0 for unit in graph.operators)


def test_a_type_that_onednn_has_not_is_made_by_the_registry(executor: CpuExecutor) -> None:
    made = from_x(
        """large = ConstantOfShape<value = int64[1] {7}>(square)  floats = Cast<to=1>(large)
        y = Mul(x, floats)""",
        f"n, {EXTENT}",
        square=[EXTENT, EXTENT],
    )
    inputs = {"x": torch.ones(1, EXTENT)}
    graph, tensors = static_graph(made, inputs)
    assert any(not unit.inputs for unit in graph.operators)
    program = on_kernels(graph, tensors, THREADS)

    y = run(executor, program, in_lanes(program, THREADS), inputs)["y"]

    assert y.unique().tolist() == [7]
