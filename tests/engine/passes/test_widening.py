"""Templates of FP16 and BF16 on FP32: the same edges, numbers as of the same weights in FP64."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from braid.core.graph import Branch, Operator, OpGraph
from braid.core.tensor import TensorType
from braid.engine.importer.upload.onnx_file import parse_model
from braid.engine.onnx.lowering import lower
from braid.engine.onnx.prepare import prepare
from braid.engine.ops.dtypes import DTYPE_NAMES, spec_of
from braid.engine.passes import run_passes
from braid.engine.passes.body import Weights
from braid.engine.passes.specialise import interpret, specialise, static_inputs
from braid.engine.passes.widening import narrow_type, value_types, widen
from tests.conformance.attempt import as_tensor
from tests.conformance.cases import load_cases
from tests.engine.passes.drawing import Drawing

HALF, BFLOAT = torch.float16, torch.bfloat16


def narrowed(drawing: Drawing, dtype: torch.dtype, *outputs: str) -> tuple[OpGraph, Weights]:
    """The drawing as ``.half()`` or ``.bfloat16()`` would save it."""
    drawing.inputs = {
        name: TensorType(DTYPE_NAMES[dtype], spec.shape) for name, spec in drawing.inputs.items()
    }
    drawing.weights = {name: tensor.to(dtype) for name, tensor in drawing.weights.items()}
    return drawing.graph(*outputs)


def run(graph: OpGraph, weights: Weights, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    specs = {name: spec_of(tensor) for name, tensor in inputs.items()}
    static, constants = specialise(graph, weights, specs)
    return interpret(static, constants, inputs)


def inner_types(graph: OpGraph, weights: Weights) -> set[str]:
    """Of what operators other than casts make."""
    static, _ = specialise(graph, weights, graph.inputs)
    made = (op.outputs for op in static.operators if op.kind != "braid.cast")
    return {static.spec(name).dtype for names in made for name in names}


def network() -> Drawing:
    drawing = Drawing(x=(2, 3, 8, 8))
    drawing.op("aten.relu", drawing.norm(drawing.conv("x", 3, 8), 8))
    drawing.op("aten.mean", drawing.operators[-1].outputs[0], dims=[2, 3])
    drawing.op("aten.softmax", drawing.operators[-1].outputs[0], dim=-1)
    return drawing


@pytest.mark.parametrize(("dtype", "step"), [(HALF, 2**-11), (BFLOAT, 2**-8)])
def test_a_network_is_rounded_at_its_end_only(dtype: torch.dtype, step: float) -> None:
    drawing = network()
    filed = narrowed(drawing, dtype, drawing.operators[-1].outputs[0])
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)).to(dtype)

    graph, weights = run_passes(*widen(*filed))

    assert narrow_type(*filed) == DTYPE_NAMES[dtype]
    assert inner_types(graph, weights) == {"FP32"}
    (got,) = run(graph, weights, {"x": x}).values()
    wide = {name: tensor.double() for name, tensor in filed[1].items()}
    static, _ = specialise(filed[0], filed[1], filed[0].inputs)
    (exact,) = interpret(static, wide, {"x": x.double()}).values()
    assert got.dtype == dtype
    assert float((got.double() - exact).abs().max()) <= step * float(exact.abs().max())


def test_casts_between_floats_disappear_and_norms_in_fp32_are_joined_with_the_rest() -> None:
    drawing = Drawing(x=(2, 8))
    wide = drawing.op("braid.cast", "x", dtype="FP32")
    squared = drawing.op("aten.mul", wide, wide)
    back = drawing.op("braid.cast", squared, dtype="FP16")
    y = drawing.op("aten.add", back, "x")

    graph, weights = run_passes(*widen(*narrowed(drawing, HALF, y)))

    kinds = [op.kind.split(".")[1] for op in graph.operators]
    assert kinds == ["cast", "mul", "add", "cast"]
    assert inner_types(graph, weights) == {"FP32"}


def test_what_rounds_to_whole_numbers_reads_what_the_file_holds() -> None:
    drawing = Drawing(x=(4,))
    third = drawing.op("aten.mul", "x", drawing.constant(name="third", value=1 / 3))
    whole = drawing.op("aten.floor", third)
    count = drawing.op("braid.cast", third, dtype="INT64")
    same = drawing.op("aten.eq", whole, third)
    filed = narrowed(drawing, HALF, whole, count, same)
    x = torch.tensor([3.0, 9.0, 2046.0, 1.0]).to(HALF)

    got, wanted = run(*run_passes(*widen(*filed)), {"x": x}), run(*filed, {"x": x})

    exact = x.float() * filed[1]["third"].float()
    assert not torch.equal(exact.floor(), wanted["y0"].float()), "FP32 would tell otherwise"
    for name, tensor in wanted.items():
        assert got[name].dtype == tensor.dtype
        assert torch.equal(got[name], tensor)


def test_masks_at_the_end_of_the_range_stay_finite() -> None:
    drawing = Drawing(x=(1, 4))
    mask = drawing.constant(1, 4, value=-65504.0)
    y = drawing.op("aten.softmax", drawing.op("aten.add", "x", mask), dim=-1)
    x = torch.tensor([[-60000.0, 0.0, 1.0, 2.0]]).to(HALF)

    (got,) = run(*run_passes(*widen(*narrowed(drawing, HALF, y))), {"x": x}).values()

    assert got.isfinite().all()


@pytest.mark.parametrize("is_on", [True, False])
def test_branches_compute_in_fp32_and_may_give_an_input_back(is_on: bool) -> None:
    drawing = Drawing(x=(3,))
    on = drawing.constant(name="on", value=float(is_on))
    then = Branch((Operator("exp", "aten.exp", ("x",), ("e",)),), ("e",))
    branched = drawing.cond(on, then, Branch((), ("x",)))
    filed = narrowed(drawing, HALF, drawing.op("aten.add", branched, "x"))
    x = torch.tensor([0.5, 1.0, 2.0]).to(HALF)

    graph, weights = widen(*filed)

    (got,), (wanted,) = (run(*each, {"x": x}).values() for each in ((graph, weights), filed))
    assert got.dtype == HALF
    torch.testing.assert_close(got, wanted, rtol=2e-3, atol=0)


def test_weights_that_are_only_stored_in_16_bits_make_no_narrow_model() -> None:
    drawing = Drawing(x=(2, 3))
    weight = drawing.op("braid.cast", drawing.constant(3), dtype="FP32")
    y = drawing.op("aten.mul", "x", weight)
    drawing.weights = {name: tensor.half() for name, tensor in drawing.weights.items()}

    assert narrow_type(*drawing.graph(y)) == ""


@pytest.mark.ci
def test_types_of_values_are_those_of_every_operator_that_onnx_tests() -> None:
    wrong, seen = [], set()
    for case in load_cases(["node"]):
        try:
            template, weights = lower(prepare(parse_model(case.model)))
            arrays, _ = case.data_sets[0]
            inputs = dict(zip(template.inputs, map(as_tensor, arrays), strict=False))
            static = {name: inputs[name] for name in static_inputs(template)}
            specs = {name: spec_of(tensor) for name, tensor in inputs.items()}
            graph, _ = specialise(template, weights, specs, static)
        except Exception:
            continue
        types = value_types(template, weights)
        for operator in graph.operators:
            for name in operator.outputs:
                seen.add(operator.kind)
                if name in types and types[name] != graph.spec(name).dtype:
                    wrong.append((case.name, operator.kind, types[name], graph.spec(name).dtype))

    assert wrong == []
    assert len(seen) > 100
