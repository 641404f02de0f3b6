"""Quantised networks, unit by unit, against ONNX Runtime on the same file.

ONNX Runtime gives every tensor of integers in the file. Each unit runs on those, so that its own
error shows: one step, where rounding decides otherwise.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper
from torch import Tensor

from braid.core.graph import OpGraph
from braid.engine.cpu.device_key import has_integer_kernels
from braid.engine.ops.families.quantised_unit import KIND
from braid.engine.ops.session_run import new_session
from braid.engine.passes.fusion import fuse_residuals
from braid.engine.passes.quantised.fusing import fuse_quantised
from braid.engine.passes.specialise import interpret
from braid.engine.program.kernel import PackedWeights
from tests.engine.cpu.executors import on_kernels, on_tensors
from tests.engine.onnx.oracle import static_graph
from tests.engine.quantised.models import NETWORKS, normal, quantised

BATCH = 2

EVERY = [
    (name, signed, per_channel)
    for name in NETWORKS
    for signed in (False, True)
    for per_channel in (False, True)
]


def units_of(path: Path, *, on_integers: bool) -> tuple[OpGraph, dict[str, Tensor]]:
    """The units of a quantised network, on integers where they can be."""
    graph, constants = static_graph(onnx.load(path), BATCH)
    graph = fuse_residuals(graph)
    graph, constants = fuse_quantised(graph, constants, PackedWeights(), on_integers=on_integers)
    graph.verify()
    return graph, constants


def every_value(path: Path, x: Tensor) -> dict[str, Tensor]:
    """Every tensor of integers that ONNX Runtime makes, and the output."""
    model = onnx.load(path)
    integers = [node.output[0] for node in model.graph.node if node.op_type == "QuantizeLinear"]
    model.graph.output.extend(map(helper.make_empty_tensor_value_info, integers))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    found = session.run(names, {"x": x.numpy()})
    return {name: torch.from_numpy(array) for name, array in zip(names, found, strict=True)}


def example(graph: OpGraph) -> Tensor:
    shape = tuple(map(int, graph.inputs["x"].shape))
    return torch.from_numpy(normal(np.random.default_rng(2), shape))


@pytest.fixture(params=EVERY, ids=str)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    name, signed, per_channel = request.param
    return quantised(name, tmp_path, signed=signed, per_channel=per_channel)


def test_units_on_integers_compute_what_their_parts_do(file: Path) -> None:
    graph, constants = units_of(file, on_integers=True)
    plain, floats = units_of(file, on_integers=False)
    inputs = {"x": example(graph)}

    got, wanted = interpret(graph, constants, inputs), interpret(plain, floats, inputs)

    assert any(op.kind == KIND for op in graph.operators)
    for name in wanted:
        torch.testing.assert_close(got[name], wanted[name], rtol=0, atol=1e-5)


@pytest.mark.skipif(not has_integer_kernels(), reason="the CPU has no instructions for it")
@pytest.mark.parametrize("threads", [1, 2])
def test_each_unit_is_within_a_step_of_onnxruntime(file: Path, threads: int) -> None:
    graph, constants = units_of(file, on_integers=True)
    x = example(graph)
    expected = every_value(file, x)
    program = on_kernels(graph, constants, threads)
    torch.set_num_threads(threads)
    values: dict[str, Tensor] = {**constants, "x": x}
    compared = 0
    for op, unit in zip(graph.operators, program.units, strict=True):
        run = on_tensors(unit.kernel, threads)
        result = run(*(values[name] if name else None for name in op.inputs))
        values[op.outputs[0]] = got = result if isinstance(result, Tensor) else result[0]
        if op.outputs[0] in expected:
            wanted = expected[op.outputs[0]]
            if not got.is_floating_point():
                assert (got.int() - wanted.int()).abs().max() <= 1, op
            compared += 1
            values[op.outputs[0]] = wanted
    assert compared >= 8
    for name, value in graph.outputs.items():
        scale = float(expected[name].abs().max())
        torch.testing.assert_close(values[value], expected[name], rtol=0, atol=0.02 * scale)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("name", ["residual", "branches", "separable", "attention"])
def test_quantised_operators_compute_what_onnxruntime_does(
    name: str, signed: bool, tmp_path: Path
) -> None:
    file = quantised(name, tmp_path, signed=signed, per_channel=False, operators=True)
    graph, constants = units_of(file, on_integers=True)
    x = example(graph)
    session = new_session(file, onnxruntime.SessionOptions())
    (wanted,) = session.run(None, {"x": x.numpy()})

    (got,) = interpret(graph, constants, {"x": x}).values()

    error = np.abs(got.numpy() - wanted).max() / np.abs(wanted).max()
    assert error <= 0.02
    assert sum(op.kind == KIND for op in graph.operators) >= 4


@pytest.mark.skipif(not has_integer_kernels(), reason="the CPU has no instructions for it")
def test_layers_run_on_onednn(file: Path) -> None:
    graph, constants = units_of(file, on_integers=True)

    program = on_kernels(graph, constants)

    slow = Counter(
        str(op.attributes["unit"])
        for op, unit in zip(graph.operators, program.units, strict=True)
        if op.kind == KIND and unit.kernel.variant != "onednn"
    )
    assert not slow


def kinds(file: Path) -> Mapping[str, int]:
    graph, _ = units_of(file, on_integers=True)
    units = (str(op.attributes.get("unit", op.kind)) for op in graph.operators)
    return Counter(units)


def test_a_shortcut_and_both_roundings_are_one_unit(tmp_path: Path) -> None:
    file = quantised("residual", tmp_path, signed=False, per_channel=True)

    assert kinds(file) == {
        "braid.quantise": 1, "aten.convolution": 5, "braid.convolution_add": 1, "aten.add": 1,
        "braid.max_pool": 1, "aten.mean": 1, "aten.linear": 1, "braid.dequantise": 1,
    }  # fmt: skip


def test_parts_of_a_concatenation_are_rounded_to_its_grid_where_they_are_made(
    tmp_path: Path,
) -> None:
    found = kinds(quantised("branches", tmp_path, signed=False, per_channel=True))

    assert found["braid.identity"] == 0
    assert found["aten.cat"] == 2
