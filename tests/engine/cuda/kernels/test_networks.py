"""Whole networks on the CUDA kernels, unit by unit, in every precision, against FP32."""

from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor

from benchmarks.networks.export import export_onnx
from benchmarks.networks.registry import NETWORKS
from braid.core.graph import OpGraph
from braid.core.precision import PRECISIONS, TOLERANCES
from braid.engine.cuda.kernels.candidates import CudaKernels
from braid.engine.cuda.kernels.library_units import FusedOps
from braid.engine.ops.dtypes import arrays_of
from braid.engine.passes.fusion import fuse_residuals
from braid.engine.passes.precision import in_precision
from braid.engine.passes.specialise import interpret
from braid.engine.program.kernel import PackedWeights
from braid.engine.program.merge import merge_groups
from braid.engine.program.program import Binding, Program, bind
from braid.engine.timing.comparison import errors
from tests.engine.cuda.kernels.fakes import DecomposedOps
from tests.engine.onnx.oracle import static_graph
from tests.models.small import small_cnn

Inputs = Mapping[str, Tensor]
Static = tuple[OpGraph, dict[str, Tensor]]


def run(program: Program, inputs: Inputs, *, merged: bool = False) -> dict[str, Tensor]:
    """Unit by unit, or with everything merged that can be."""
    env = program.environment(inputs)
    groups = {g[0]: tuple(g) for g in merge_groups(program.graph)} if merged else {}
    done: set[int] = set()
    for index in range(len(program.units)):
        if index in done:
            continue
        units = groups.get(index, (index,))
        done.update(units)
        unit = program.unit(units)
        results = unit.kernel.function(*(env[slot] for slot in unit.inputs))
        outputs = (results,) if isinstance(results, Tensor) else results
        for slot, tensor in zip(unit.outputs, outputs, strict=False):
            env[slot] = tensor
    return program.results(env)


def check(static: Static, inputs: Inputs, precision: str, layout: str, device: str) -> None:
    """Outputs in FP32's types, within the precision's tolerance, merged too."""
    reference = interpret(*static, inputs)
    packed = PackedWeights()
    ops: FusedOps | None = DecomposedOps() if device == "cpu" else None
    source = CudaKernels(torch.device(device), precision, layout=layout, ops=ops, compile_=None)
    program = bind(*in_precision(*static, precision, packed), Binding(source, 1, packed))
    placed = {name: tensor.to(device) for name, tensor in inputs.items()}
    for merged in (False, True):
        got = {name: y.cpu() for name, y in run(program, placed, merged=merged).items()}
        assert {y.dtype for y in got.values()} == {y.dtype for y in reference.values()}
        _, relative = errors(arrays_of(got), arrays_of(reference))
        assert relative <= TOLERANCES.get(precision, 1e-4), f"{relative}, merged: {merged}"


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_small_network_agrees_in_every_precision_and_layout(
    precision: str, layout: str, tmp_path: Path
) -> None:
    inputs = {"x": torch.randn(2, 3, 16, 16)}
    graph, constants = static_graph(onnx.load(small_cnn(tmp_path / "cnn.onnx")), inputs)
    check((fuse_residuals(graph), constants), inputs, precision, layout, "cpu")


CNN_AND_TEXT = ("squeezenet", "googlenet", "inception_v3", "randwire", "nasnet_large", "bert_base")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["squeezenet", "googlenet", "randwire_small", "bert_base"])
def test_networks_agree_in_every_precision(name: str, tmp_path: Path) -> None:
    network(name, PRECISIONS, "nhwc", "cpu", tmp_path)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("name", CNN_AND_TEXT)
def test_networks_agree_in_every_precision_on_a_gpu(name: str, layout: str, tmp_path: Path) -> None:
    network(name, PRECISIONS, layout, "cuda", tmp_path)


def network(name: str, precisions: tuple[str, ...], layout: str, device: str, folder: Path) -> None:
    path = export_onnx(name, folder / "network.onnx")
    known = NETWORKS[name]
    inputs = dict(zip(known.input_names, known.example_inputs(1), strict=True))
    graph, constants = static_graph(onnx.load(path), inputs)
    for precision in precisions:
        check((fuse_residuals(graph), constants), inputs, precision, layout, device)
