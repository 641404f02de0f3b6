"""Units without inputs: tensors too large to fold, made when they are needed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from braid.core.measurement import DeviceFacts
from braid.core.precision import BF16
from braid.core.schedule import Stage
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.kernels.candidates import bind_on_cpu
from braid.engine.cpu.lane_plan import LanePlan
from braid.engine.cpu.lanes import lay_out
from braid.engine.cuda.executor import CudaExecutor
from braid.engine.onnx.lowering import lower
from braid.engine.onnx.prepare import prepare
from braid.engine.ops.dtypes import spec_of
from braid.engine.passes import run_passes
from braid.engine.passes.precision import in_precision
from braid.engine.passes.specialise import interpret, specialise
from braid.engine.program.kernel import PackedWeights
from braid.engine.program.program import Binding, bind
from braid.engine.program.work import estimated_work_us
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import plan
from tests.engine.cuda.graphs import RegistryKernels
from tests.engine.cuda.recording import RecordingDriver, races
from tests.engine.onnx.oracle import through_onnxruntime
from tests.models.graphs import model

EXTENT = 2100  # squared more elements than an import folds
THREADS = 2


class UnitCost:
    """A stage takes as long as its longest group has units."""

    def stage_latency_us(self, stage: Stage) -> float:
        return float(max(map(len, stage.groups)))


def filled(value: float) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array([value], np.float32))


#   weight ──relu──┐
#   x ─────────> MatMul ─┐
#   other ───────────> Add ──> y       weight, other: ConstantOfShape
def constants() -> onnx.ModelProto:
    nodes = [
        helper.make_node("ConstantOfShape", ["square"], ["weight"], value=filled(0.01)),
        helper.make_node("Relu", ["weight"], ["kept"]),
        helper.make_node("MatMul", ["x", "kept"], ["product"]),
        helper.make_node("ConstantOfShape", ["square"], ["other"], value=filled(-1.0)),
        helper.make_node("Add", ["product", "other"], ["y"]),
    ]
    return model(nodes, {"square": np.array([EXTENT, EXTENT])}, shape=["n", EXTENT])


@pytest.fixture
def executor() -> Iterator[CpuExecutor]:
    before = torch.get_num_threads()
    executor = CpuExecutor(THREADS)
    yield executor
    executor.close()
    torch.set_num_threads(before)


@pytest.mark.parametrize("precision", ["fp32", BF16])
def test_they_run_under_plans_of_one_stream_and_of_several(
    precision: str, executor: CpuExecutor
) -> None:
    made = constants()
    x = np.random.default_rng(0).standard_normal((1, EXTENT)).astype(np.float32)
    inputs = {"x": torch.from_numpy(x)}
    template, weights = run_passes(*lower(prepare(made)))
    static, content = specialise(template, weights, {"x": spec_of(inputs["x"])})
    graph, tensors = in_precision(static, content, precision, PackedWeights())
    program = bind_on_cpu(graph, tensors, PackedWeights(), THREADS)
    expected = through_onnxruntime(made, {"x": x})["y"]

    assert any(not unit.inputs for unit in graph.operators)
    for planner in ("sequential", "greedy", "lios"):
        found = plan(graph, UnitCost(), PlannerSettings.parse(planner), DeviceFacts()).plan
        layout = LanePlan(lay_out(program, found, THREADS))
        for _ in range(2):
            y = executor.run(program, layout, inputs)["y"]
            np.testing.assert_allclose(y.numpy(), expected, rtol=0, atol=0.2)


def test_they_are_captured_without_races_and_measured_as_others() -> None:
    template, weights = run_passes(*lower(prepare(constants())))
    inputs = {"x": torch.ones(1, EXTENT)}
    with torch.inference_mode():
        graph, tensors = specialise(template, weights, {"x": spec_of(inputs["x"])})
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
    value = numpy_helper.from_array(np.array([7], np.int64))
    nodes = [
        helper.make_node("ConstantOfShape", ["square"], ["large"], value=value),
        helper.make_node("Cast", ["large"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "floats"], ["y"]),
    ]
    made = model(nodes, {"square": np.array([EXTENT, EXTENT])}, shape=["n", EXTENT])
    template, weights = run_passes(*lower(prepare(made)))
    inputs = {"x": torch.ones(1, EXTENT)}
    graph, tensors = specialise(template, weights, {"x": spec_of(inputs["x"])})
    assert any(not unit.inputs for unit in graph.operators)
    program = bind_on_cpu(graph, tensors, PackedWeights(), THREADS)
    found = plan(graph, UnitCost(), PlannerSettings.parse("sequential"), DeviceFacts()).plan

    y = executor.run(program, LanePlan(lay_out(program, found, THREADS)), inputs)["y"]

    assert y.unique().tolist() == [7]
