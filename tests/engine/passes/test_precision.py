"""Graphs on narrower data: same inputs and outputs, casts where they belong, numbers close by."""

import pytest
import torch

from braid.core.graph import OpGraph
from braid.core.precision import TOLERANCES
from braid.engine.ops.dtypes import arrays_of
from braid.engine.passes.body import Weights
from braid.engine.passes.fusion import fuse_residuals
from braid.engine.passes.precision import in_precision
from braid.engine.passes.specialise import interpret
from braid.engine.program.kernel import PackedWeights
from braid.engine.timing.comparison import errors
from tests.engine.passes.drawing import drawn

WINDOW = "stride=[], padding=[1, 1], dilation=[]"


def static(text: str, *shape: int) -> tuple[OpGraph, Weights]:
    drawing, outputs = drawn(text, x=shape)
    graph, constants = drawing.static(*outputs)
    return fuse_residuals(graph), constants


def narrowed(given: tuple[OpGraph, Weights], precision: str) -> tuple[OpGraph, Weights]:
    graph, constants = in_precision(*given, precision, PackedWeights())
    graph.verify()
    return graph, constants


def dtypes(graph: OpGraph) -> list[str]:
    """Kind of each unit, and type of its output."""
    return [f"{op.kind.split('.')[1]} {graph.spec(op.outputs[0]).dtype}" for op in graph.operators]


#   x ─> conv ─> relu ─┬─> mean ─> linear ─> softmax ─> exp ─> y
#                      └─> z
def network() -> tuple[OpGraph, Weights]:
    rows = "linear(mean(image, dims=[2, 3]), const(5, 8), const(5))"
    image = f"relu(convolution(x, const(8, 3, 3, 3), {WINDOW}))"
    return static(f"image = {image}; exp(softmax({rows}, dim=-1)), image", 2, 3, 10, 10)


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_precisions_on_fp32_data_change_nothing(precision: str) -> None:
    graph, constants = network()

    assert narrowed((graph, constants), precision) == (graph, constants)


@pytest.mark.parametrize(("precision", "narrow"), [("fp16", "FP16"), ("bf16", "BF16")])
def test_wide_kinds_and_the_models_edges_stay_fp32(precision: str, narrow: str) -> None:
    graph, constants = network()

    made, cast = narrowed((graph, constants), precision)

    assert made.inputs == graph.inputs
    assert list(made.outputs) == list(graph.outputs)
    assert {made.spec(value).dtype for value in made.outputs.values()} == {"FP32"}
    assert sorted(dtypes(made)) == sorted(
        [
            *(f"{kind} {narrow}" for kind in ("cast", "convolution", "relu", "mean", "linear")),
            *(f"softmax {narrow}", "cast FP32", "exp FP32", "cast FP32"),
        ]
    )
    assert set(cast) == set(made.constants) == {f"{name}:{narrow}" for name in constants}


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_numbers_stay_within_the_precisions_tolerance(precision: str) -> None:
    given = network()
    inputs = {"x": torch.randn(2, 3, 10, 10)}
    reference = interpret(*given, inputs)

    got = interpret(*narrowed(given, precision), inputs)

    _, relative = errors(arrays_of(got), arrays_of(reference))
    assert 0 < relative < TOLERANCES[precision]
    assert {tensor.dtype for tensor in got.values()} == {torch.float32}


SUMS = "sub(sum(x, dims=[1], keepdim=True), sum_square(x, dims=[1], keepdim=True))"
VIEWED = "reshape(reshape(x, shape=[3, 4]), shape=[2, 6])"


@pytest.mark.parametrize(
    ("text", "shape", "precision", "expected"),
    [
        # views follow what they view, and a value is cast once
        (
            f"x = {VIEWED}; w = const(6, 6);"
            "exp(permute(maximum(linear(x, w), linear(x, w)), dims=[1, 0]))",
            (2, 6),
            "bf16",
            [
                *("reshape FP32", "reshape FP32", "cast BF16", "linear BF16", "linear BF16"),
                *("maximum BF16", "permute BF16", "cast FP32", "exp FP32"),
            ],
        ),
        # sums are subtracted before they are rounded
        (
            f"sub({SUMS}, x)",
            (2, 64),
            "fp16",
            ["sum FP32", "sum_square FP32", "sub FP32", "sub FP32"],
        ),
        # an epilogue may overflow
        ("linear(x, const(4, 4), epilogue=[['aten.exp']])", (2, 4), "fp16", ["linear FP32"]),
    ],
)
def test_where_values_are_cast(
    text: str, shape: tuple[int, ...], precision: str, expected: list[str]
) -> None:
    assert dtypes(narrowed(static(text, *shape), precision)[0]) == expected


def test_residual_units_compute_on_narrow_data_too() -> None:
    convolution = f"convolution({{}}, const(3, 3, 3, 3), {WINDOW})"
    first, second = convolution.format("x"), convolution.format("a")
    given = static(f"a = {first}; add({second}, a, epilogue=[['aten.relu']])", 1, 3, 6, 6)

    assert "convolution_add FP16" in dtypes(narrowed(given, "fp16")[0])


def test_statistics_of_a_batch_norm_stay_fp32() -> None:
    graph, constants = static("norm(x, 4)", 2, 4, 5, 5)

    made, kept = narrowed((graph, constants), "fp16")

    assert set(kept) == set(constants)
    assert dtypes(made) == ["cast FP16", "batch_norm FP16", "cast FP32"]


def test_masks_beyond_the_range_stay_finite() -> None:
    drawing, outputs = drawn("add(x, const(3, name='m'))", x=(3,))
    drawing.weights["m"] = torch.tensor([0.0, -3.4e38, -torch.inf])

    _, cast = narrowed(drawing.static(*outputs), "fp16")

    assert cast["m:FP16"].tolist() == [0.0, -65504.0, -torch.inf]
