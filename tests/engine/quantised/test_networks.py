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
from numpy.typing import NDArray
from onnx import helper
from torch import Tensor

from braid.core.graph import OpGraph
from braid.core.quantisation import Quantisation
from braid.engine.cpu.device_key import has_integer_kernels
from braid.engine.ops.families.quantised_unit import KIND
from braid.engine.ops.kinds import call
from braid.engine.ops.session_run import new_session
from braid.engine.passes.fusion import fuse_residuals, fuse_weighted_sums
from braid.engine.passes.quantised.calibrated import quantised_by
from braid.engine.passes.quantised.candidates import Candidates
from braid.engine.passes.quantised.fusing import fuse_quantised
from braid.engine.passes.specialise import interpret
from braid.engine.program.kernel import PackedWeights
from tests.engine.cpu.executors import on_kernels, on_tensors
from tests.engine.onnx.oracle import static_graph
from tests.engine.quantised.models import NETWORKS, Network, normal, quantised, quantised_by_data
from tests.models.graphs import parsed

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


ON_INTEGERS = ("braid.matmul_integer", "braid.convolution_integer", "braid.quantise")


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("name", ["residual", "attention"])
def test_results_are_those_of_onnxruntime(name: str, per_channel: bool, tmp_path: Path) -> None:
    file = quantised_by_data(name, tmp_path, per_channel=per_channel)
    graph, constants = units_of(file, on_integers=has_integer_kernels())
    x = example(graph)
    session = new_session(file, onnxruntime.SessionOptions())
    (wanted,) = session.run(None, {"x": x.numpy()})

    (got,) = run_bound((graph, constants), {"x": x}, threads=2).values()

    step = abs(wanted).max() / 64
    torch.testing.assert_close(got, torch.from_numpy(wanted), rtol=0, atol=float(step))


@pytest.mark.skipif(not has_integer_kernels(), reason="the CPU has no instructions for it")
def test_sums_and_quantisations_run_on_onednn(tmp_path: Path) -> None:
    graph, constants = units_of(quantised_by_data("residual", tmp_path), on_integers=True)

    program = on_kernels(graph, constants)

    found = Counter(
        (op.kind, unit.kernel.variant)
        for op, unit in zip(graph.operators, program.units, strict=True)
        if op.kind in ON_INTEGERS
    )
    assert {variant for _, variant in found} == {"onednn"}, found
    assert len(found) == 3


Static = tuple[OpGraph, dict[str, Tensor]]
Array = NDArray[np.float32]


def static(model: onnx.ModelProto, batch: int = 2) -> Static:
    graph, constants = static_graph(model, batch)
    return fuse_weighted_sums(fuse_residuals(graph), constants), constants


def padded_averages() -> tuple[Network, str]:
    """Averages whose windows reach over the images, with and without the padding counted."""
    net = Network("averages", (3, 12, 12))
    x = net.node("Relu", net.node("MaxPool", net.conv("x", 8, 3), kernel_shape=[1, 1]))
    window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    counted = net.node("AveragePool", x, **window, count_include_pad=1)
    left_out = net.node("AveragePool", net.conv(x, 8, 8), **window, strides=[2, 2])
    one = net.conv(counted, 4, 8, kernel=1, strides=[2, 2])
    return net, net.node("Add", one, net.conv(left_out, 4, 8, kernel=1))


def weighted_sums() -> tuple[Network, str]:
    """Nodes as RandWire has them: multiples of two, three and four convolutions, and a ReLU."""
    net = Network("weighted", (3, 12, 12))
    x = net.conv("x", 8, 3)
    for weights in ([0.7, 0.4], [0.3, -1.6, 0.5], [0.6, 1.0, -0.2, 2.5]):
        terms = [
            net.node("Mul", net.conv(x, 8, 8, kernel=1), net.node("Constant", value_float=weight))
            for weight in weights
        ]
        total = terms[0]
        for term in terms[1:]:
            total = net.node("Add", total, term)
        x = net.conv(net.node("Relu", total), 8, 8, group=8)
    return net, net.conv(x, 4, 8, kernel=1)


MADE_HERE = {"averages": padded_averages, "weighted": weighted_sums}


def named(name: str) -> onnx.ModelProto:
    net, output = {**NETWORKS, **MADE_HERE}[name]()
    return net.model(output)


def inputs_of(graph: OpGraph, seed: int = 2) -> dict[str, Tensor]:
    shape = tuple(map(int, graph.inputs["x"].shape))
    return {"x": torch.from_numpy(normal(np.random.default_rng(seed), shape))}


def calibrated(graph: OpGraph, constants: Mapping[str, Tensor], *wide: str) -> Quantisation:
    values = {**constants, **inputs_of(graph)}
    for op in graph.operators:
        made = call(op, [values[name] if name else None for name in op.inputs])
        values.update(zip(op.outputs, made, strict=False))
    wanted = Candidates(graph, constants).values()
    return Quantisation(
        {name: (float(values[name].min()), float(values[name].max())) for name in wanted}, wide
    )


def with_parts(given: Static, how: Quantisation) -> Static:
    return quantised_by(*given, how, PackedWeights())


def on_units(given: Static, how: Quantisation) -> Static:
    made = fuse_quantised(*with_parts(given, how), PackedWeights(), on_integers=True)
    made[0].verify()
    return made


def run_bound(made: Static, inputs: dict[str, Tensor], threads: int = 1) -> dict[str, Tensor]:
    graph, constants = made
    program = on_kernels(graph, constants, threads)
    torch.set_num_threads(threads)
    values = {**constants, **inputs}
    for op, unit in zip(graph.operators, program.units, strict=True):
        found = on_tensors(unit.kernel, threads)(*(values[n] if n else None for n in op.inputs))
        results = (found,) if isinstance(found, Tensor) else found
        values.update(zip(op.outputs, results, strict=False))
    return {name: values[value] for name, value in graph.outputs.items()}


def test_two_linear_layers_compute_what_numpy_does_on_integers() -> None:
    rng = np.random.default_rng(4)
    w1, b1, w2 = (rng.normal(size=s).astype(np.float32) for s in ((16, 8), (8,), (8, 5)))
    model = parsed(
        """(float[batch, 16] x) => (float[batch, 5] y)
        { m = MatMul(x, w1)  a = Add(m, b1)  h = Relu(a)  y = MatMul(h, w2) }""",
        {"w1": w1, "b1": b1, "w2": w2},
    )
    given = static(model, batch=6)
    (first, _) = (op for op in given[0].operators if op.kind == "aten.linear")
    hidden = first.outputs[0]
    made = on_units(given, Quantisation({"x": (-3.0, 4.0), hidden: (0.0, 9.0)}))
    x = rng.normal(size=(6, 16), scale=2).astype(np.float32)

    (got,) = interpret(*made, {"x": torch.from_numpy(x)}).values()

    h = np.maximum(product(x, (-3.0, 4.0), w1) + b1, 0)
    np.testing.assert_allclose(got.numpy(), product(h, (0.0, 9.0), w2), rtol=1e-4, atol=1e-4)
    assert [op.kind for op in made[0].operators] == ["braid.quantise", KIND, KIND]


def product(x: Array, ends: tuple[float, float], weight: Array) -> Array:
    """x W from sums of integers: x in 256 steps over a range, W in 255 steps by column."""
    step = np.float32((ends[1] - ends[0]) / 255)
    zero = round(-ends[0] / step)
    integers = np.clip(np.round(x / step) + zero, 0, 255).astype(np.int64) - zero
    steps = np.abs(weight).max(0) / 127
    sums = integers @ np.round(weight / steps).astype(np.int64)
    found: Array = (sums * (step * steps)).astype(np.float32)
    return found


@pytest.mark.parametrize("name", [*NETWORKS, *MADE_HERE])
def test_units_compute_what_quantising_each_part_does(name: str) -> None:
    given = static(named(name))
    how = calibrated(*given)
    made = on_units(given, how)
    inputs = inputs_of(given[0], seed=3)
    wanted = interpret(*with_parts(given, how), inputs)

    assert sum(op.kind == KIND for op in made[0].operators) >= 4
    for got in (interpret(*made, inputs), *_on_kernels(made, inputs)):
        for output, exact in wanted.items():
            error = (got[output] - exact).abs().max() / exact.abs().max()
            assert error <= 0.02, f"{output}: more than some roundings that fall otherwise"


def _on_kernels(made: Static, inputs: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """What the CPU's own kernels compute, where it has the instructions."""
    return [run_bound(made, inputs)] if has_integer_kernels() else []


@pytest.mark.parametrize("name", ["residual", "branches", *MADE_HERE])
def test_everything_between_convolutions_computes_on_integers(name: str) -> None:
    given = static(named(name))

    graph, constants = on_units(given, calibrated(*given))

    kinds = [op.kind for op in graph.operators]
    assert kinds.count("braid.quantise") == 1, "of the graph's input"
    assert "braid.dequantise" not in kinds
    assert "aten.convolution" not in kinds
    if has_integer_kernels():
        program = on_kernels(graph, constants, 1)
        assert {unit.kernel.variant for unit in program.units} == {"onednn"}


def test_a_unit_that_stays_wide_has_its_own_weights_and_results_in_fp32() -> None:
    given = static(named("residual"))
    chosen = [op for op in given[0].operators if op.kind == "aten.convolution"][2]

    graph, constants = on_units(given, calibrated(*given, chosen.name))

    (found,) = (op for op in graph.operators if op.name == chosen.name)
    assert found.kind == "aten.convolution"
    assert constants[found.inputs[1]] is given[1][chosen.inputs[1]]
    assert graph.spec(found.outputs[0]).dtype == "FP32"
    assert sum(op.kind == KIND for op in graph.operators) >= 4


def test_another_batch_size_makes_the_same_units() -> None:
    one, eight = static(named("branches"), 1), static(named("branches"), 8)
    how = Quantisation.parsed(calibrated(*one).text)

    found = [[(op.name, op.kind, op.inputs) for op in on_units(s, how)[0].operators]
             for s in (one, eight)]  # fmt: skip

    assert found[0] == found[1]


def test_what_has_no_range_stays_wide_and_a_model_without_ranges_stays_as_it_is() -> None:
    graph, constants = static(named("residual"))

    same, kept = on_units((graph, constants), Quantisation())

    assert same.operators == graph.operators
    assert kept.keys() == constants.keys()


@pytest.mark.parametrize("ends", [(0.0, 0.0), (5.0, 5.0), (-1e-45, 1e-45), (1.0, 2.0)])
def test_values_that_never_change_can_be_calibrated(ends: tuple[float, float]) -> None:
    given = static(named("branches"))
    how = calibrated(*given)
    how = Quantisation(dict.fromkeys(how.ranges, ends))

    for got in interpret(*on_units(given, how), inputs_of(given[0])).values():
        assert got.isfinite().all()
