"""Every benchmark network under partitioned, merged and joined plans, against onnxruntime.

Weights are seeded, inputs those of the benchmarks; batch 1, 4 and 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch

from benchmarks.networks.export import export_onnx
from benchmarks.networks.registry import NETWORKS
from braid.core.graph import OpGraph
from braid.core.measurement import DeviceFacts
from braid.core.plan import StreamPlan, verify_plan
from braid.core.schedule import Stage
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.kernels.candidates import bind_on_cpu
from braid.engine.cpu.lane_plan import LanePlan
from braid.engine.cpu.lanes import lay_out
from braid.engine.onnx.lowering import lower
from braid.engine.ops.dtypes import spec_of
from braid.engine.passes import run_passes
from braid.engine.passes.fusion import fuse_residuals
from braid.engine.passes.specialise import specialise
from braid.engine.program.kernel import PackedWeights
from braid.engine.program.merge import merge_groups
from braid.engine.program.program import Program
from braid.engine.timing.comparison import errors
from braid.scheduler.blocks import split_blocks
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import plan
from braid.scheduler.units import UnitGraph

TOLERANCE = 1e-4
THREADS = 2

CASES = [(name, batch) for name in NETWORKS for batch in (1, 4, 8)]


class MergesAreCheap:
    """Whatever can merge does; side by side costs nothing more than alone."""

    def stage_latency_us(self, stage: Stage) -> float:
        if stage.strategy == "merge":
            return 1.0
        return max(map(len, stage.groups)) + 0.5 * (len(stage.groups) - 1)


def plans(program: Program) -> Iterator[tuple[str, StreamPlan]]:
    """One of each kind."""
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


@pytest.mark.slow
@pytest.mark.parametrize(("name", "batch"), CASES)
def test_every_kind_of_plan_agrees_with_onnxruntime(name: str, batch: int, tmp_path: Path) -> None:
    path = export_onnx(name, tmp_path / "network.onnx")
    network = NETWORKS[name]
    inputs = dict(zip(network.input_names, network.example_inputs(batch), strict=True))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    results = session.run(None, {key: tensor.numpy() for key, tensor in inputs.items()})
    names = [output.name for output in session.get_outputs()]
    reference = {key: torch.from_numpy(value) for key, value in zip(names, results, strict=True)}
    template, weights = run_passes(*lower(onnx.load(path)))
    executor = CpuExecutor(THREADS)
    try:
        with torch.inference_mode():
            specs = {key: spec_of(tensor) for key, tensor in inputs.items()}
            graph, constants = specialise(template, weights, specs)
            program = bind_on_cpu(fuse_residuals(graph), constants, PackedWeights(), THREADS)
            for text, found in plans(program):
                laid_out = LanePlan(lay_out(program, found, THREADS))
                given = {key: torch.full_like(tensor, 9) for key, tensor in reference.items()}
                executor.run(program, laid_out, inputs, outputs=given)
                for outputs in (executor.run(program, laid_out, inputs), given):
                    _, relative = errors(outputs, reference)
                    assert relative <= TOLERANCE, f"{name}, batch {batch}, {text}"
    finally:
        executor.close()
