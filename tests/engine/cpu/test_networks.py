"""Every benchmark network under partitioned, merged and joined plans, against onnxruntime.

Weights are seeded, inputs those of the benchmarks; batch 1, 4 and 8.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor

from benchmarks.networks.export import export_onnx
from benchmarks.networks.registry import NETWORKS
from braid.core.graph import OpGraph
from braid.core.measurement import DeviceFacts
from braid.core.plan import StreamPlan, verify_plan
from braid.core.precision import BF16, FP32, TOLERANCES
from braid.core.schedule import Stage
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.kernels.candidates import bind_on_cpu
from braid.engine.cpu.segments import NativeSegment, find_runner
from braid.engine.cuda.executor import CudaExecutor
from braid.engine.ops.dtypes import arrays_of
from braid.engine.passes.fusion import fuse_residuals
from braid.engine.passes.precision import in_precision
from braid.engine.passes.specialise import interpret
from braid.engine.program.kernel import PackedWeights
from braid.engine.program.merge import merge_groups
from braid.engine.program.program import Binding, Program, bind
from braid.engine.program.work import estimated_work_us
from braid.engine.timing.comparison import errors
from braid.scheduler.blocks import split_blocks
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import plan
from braid.scheduler.units import UnitGraph
from tests.engine.cpu.executors import executor_of, in_lanes, on_kernels, run
from tests.engine.cuda.graphs import RegistryKernels
from tests.engine.cuda.recording import RecordingDriver, races
from tests.engine.onnx.oracle import static_graph, through_onnxruntime
from tests.models.graphs import from_x

THREADS = 2


class MergesAreCheap:
    """Whatever can merge does; side by side costs nothing more than alone."""

    def stage_latency_us(self, stage: Stage) -> float:
        if stage.strategy == "merge":
            return 1.0
        return max(map(len, stage.groups)) + 0.5 * (len(stage.groups) - 1)


def plans(program: Program) -> Iterator[tuple[str, StreamPlan]]:
    graph = program.graph
    groups = tuple(map(tuple, merge_groups(graph)))
    facts = DeviceFacts(merge_groups=groups)
    wanted = ["sequential", "greedy", "greedy(join=unit)", "lios"]
    wanted += ["ios-merge(r=none,s=8)"] if groups else []
    for text in wanted:
        found = plan(graph, MergesAreCheap(), PlannerSettings.parse(text), facts).plan
        verify_plan(found, graph.predecessors())
        if text.startswith("ios-merge") and _meet_in_a_block(graph, groups):
            assert found.merges, "the plan for merges has none"
        yield text, found


def _meet_in_a_block(graph: OpGraph, groups: Sequence[tuple[int, ...]]) -> bool:
    """Whether two units that could merge are planned together: blocks are planned one by one."""
    blocks = split_blocks(UnitGraph.from_graph(graph), PlannerSettings().max_block_ops)
    return any(len({*block} & {*group}) > 1 for block in blocks for group in groups)


def check_plans(
    path: Path, inputs: Mapping[str, Tensor], precision: str = FP32, *, native: bool = False
) -> None:
    """Every kind of plan agrees with ONNX Runtime, into given memory and into its own."""
    model = onnx.load(path)
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    expected = through_onnxruntime(model, arrays)
    reference = {name: torch.from_numpy(array) for name, array in expected.items()}
    executor = CpuExecutor(THREADS)
    try:
        with torch.inference_mode():
            graph, constants = static_graph(model, inputs)
            packed = PackedWeights()
            narrow = in_precision(fuse_residuals(graph), constants, precision, packed)
            program = bind_on_cpu(*narrow, packed, THREADS)
            for text, found in plans(program):
                laid_out = in_lanes(program, THREADS, found)
                given = {name: torch.full_like(tensor, 9) for name, tensor in reference.items()}
                run(executor, program, laid_out, inputs, outputs=given)
                for outputs in (run(executor, program, laid_out, inputs), given):
                    assert {tensor.dtype for tensor in outputs.values()} == {torch.float32}
                    _, error = errors(arrays_of(outputs), expected)
                    assert error <= TOLERANCES.get(precision, 1e-4), text
                if native and find_runner() is not None:
                    assert laid_out.compiled is not None
                    parts = [type(part) for part in laid_out.compiled.parts]
                    assert parts == [NativeSegment], text
    finally:
        executor.close()


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 4, 8])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_kind_of_plan_agrees_with_onnxruntime(name: str, batch: int, tmp_path: Path) -> None:
    network = NETWORKS[name]
    inputs = zip(network.input_names, network.example_inputs(batch), strict=True)

    check_plans(export_onnx(name, tmp_path / "network.onnx"), dict(inputs))


EXTENT = 2100  # squared more elements than an import folds


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
