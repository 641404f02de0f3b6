"""Every benchmark network under partitioned, merged and joined plans, against onnxruntime.

Weights are seeded, inputs those of the benchmarks; batch 1, 4 and 8.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor

from benchmarks.networks.export import export_onnx
from benchmarks.networks.registry import NETWORKS
from braid.core.graph import OpGraph
from braid.core.measurement import DeviceFacts
from braid.core.plan import StreamPlan, verify_plan
from braid.core.precision import FP32, TOLERANCES
from braid.core.schedule import Stage
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.kernels.candidates import bind_on_cpu
from braid.engine.cpu.segments import NativeSegment, find_runner
from braid.engine.ops.dtypes import arrays_of
from braid.engine.passes.fusion import fuse_residuals
from braid.engine.passes.precision import in_precision
from braid.engine.program.kernel import PackedWeights
from braid.engine.program.merge import merge_groups
from braid.engine.program.program import Program
from braid.engine.timing.comparison import errors
from braid.scheduler.blocks import split_blocks
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import plan
from braid.scheduler.units import UnitGraph
from tests.engine.cpu.executors import in_lanes, run
from tests.engine.onnx.oracle import static_graph, through_onnxruntime

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
