"""Benchmark networks under real planners' plans on the recording device: no race, right numbers."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch

from benchmarks.networks.export import export_onnx
from benchmarks.networks.registry import NETWORKS
from braid.core.measurement import DeviceFacts
from braid.core.schedule import Stage
from braid.engine.cuda.executor import CudaExecutor
from braid.engine.passes.fusion import fuse_residuals
from braid.engine.passes.specialise import interpret
from braid.engine.program.kernel import PackedWeights
from braid.engine.program.merge import merge_groups
from braid.engine.program.program import Binding, bind
from braid.engine.timing.comparison import errors
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import plan
from tests.engine.cuda.graphs import RegistryKernels
from tests.engine.cuda.recording import RecordingDriver, races
from tests.engine.onnx.oracle import static_graph

PLANNERS = ("sequential", "greedy", "lios", "opara", "nimble", "rammer", "ios-merge(r=none,s=8)")


class CountingCost:
    """A stage takes as long as its longest group has units."""

    def stage_latency_us(self, stage: Stage) -> float:
        return 1.0 if stage.strategy == "merge" else float(max(map(len, stage.groups)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["googlenet", "bert_base"])
def test_plans_of_every_planner_are_captured_without_races(name: str, tmp_path: Path) -> None:
    network = NETWORKS[name]
    path = export_onnx(name, tmp_path / "network.onnx")
    inputs = dict(zip(network.input_names, network.example_inputs(1), strict=True))
    with torch.inference_mode():
        graph, constants = static_graph(onnx.load(path), inputs)
        graph = fuse_residuals(graph)
        program = bind(graph, constants, Binding(RegistryKernels(), 1, PackedWeights()))
        reference = interpret(graph, constants, inputs)
        groups = tuple(map(tuple, merge_groups(graph)))
        facts = DeviceFacts(merge_groups=groups)
        for planner in PLANNERS:
            driver = RecordingDriver()
            executor = CudaExecutor(driver)
            found = plan(graph, CountingCost(), PlannerSettings.parse(planner), facts).plan

            prepared = executor.prepare(program, found)
            outputs = executor.run(prepared, inputs)

            assert not prepared.eager_because, planner
            assert races(driver.captures[-1].operations) == [], planner
            assert errors(outputs, reference)[1] <= 1e-4, planner
            executor.close()
