"""Graphs on narrower data: same inputs and outputs, casts where they belong, numbers close by."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from braid.core.graph import Literal, Operator, OpGraph
from braid.core.precision import TOLERANCES
from braid.core.tensor import TensorType
from braid.engine.passes.fusion import fuse_residuals
from braid.engine.passes.precision import in_precision
from braid.engine.passes.specialise import interpret, specialise
from braid.engine.program.kernel import PackedWeights
from braid.engine.timing.comparison import errors

WINDOW: dict[str, Literal] = {"stride": [], "padding": [1, 1], "dilation": []}


def draw(
    x: tuple[int, ...], weights: dict[str, Tensor], outputs: list[str], *operators: Operator
) -> tuple[OpGraph, dict[str, Tensor]]:
    template = OpGraph(
        "drawn", {"x": TensorType("FP32", x)}, {name: name for name in outputs},
        {k: TensorType("FP32", tuple(w.shape)) for k, w in weights.items()}, operators,
    )  # fmt: skip
    graph, constants = specialise(template, weights, template.inputs, {})
    return fuse_residuals(graph), constants


def unit(name: str, kind: str, *inputs: str, **attributes: Literal) -> Operator:
    return Operator(name, kind, inputs, (name,), attributes)


def dtypes(graph: OpGraph) -> dict[str, str]:
    """Of each unit's output."""
    return {op.name: graph.spec(op.outputs[0]).dtype for op in graph.operators}


#   x ─> conv ─> relu ─┬─> mean ─> linear ─> softmax ─> exp ─> y
#                      └─> z
def network() -> tuple[OpGraph, dict[str, Tensor]]:
    torch.manual_seed(0)
    weights = {"w": torch.randn(8, 3, 3, 3), "v": torch.randn(5, 8), "b": torch.randn(5)}
    return draw(
        (2, 3, 10, 10), weights, ["y", "relu"],
        unit("conv", "aten.convolution", "x", "w", **WINDOW),
        unit("relu", "aten.relu", "conv"),
        unit("mean", "aten.mean", "relu", dims=[2, 3]),
        unit("linear", "aten.linear", "mean", "v", "b"),
        unit("softmax", "aten.softmax", "linear", dim=-1),
        unit("y", "aten.exp", "softmax"),
    )  # fmt: skip


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_precisions_on_fp32_data_change_nothing(precision: str) -> None:
    graph, constants = network()

    assert in_precision(graph, constants, precision, PackedWeights()) == (graph, constants)


@pytest.mark.parametrize(("precision", "narrow"), [("fp16", "FP16"), ("bf16", "BF16")])
def test_wide_kinds_and_the_models_edges_stay_fp32(precision: str, narrow: str) -> None:
    graph, constants = network()

    narrowed, cast = in_precision(graph, constants, precision, PackedWeights())

    narrowed.verify()
    assert narrowed.inputs == graph.inputs
    assert list(narrowed.outputs) == list(graph.outputs)
    assert {narrowed.spec(value).dtype for value in narrowed.outputs.values()} == {"FP32"}
    assert dtypes(narrowed) == {
        f"x:{narrow}": narrow, "conv": narrow, "relu": narrow, "mean": narrow, "linear": narrow,
        "softmax": narrow, "softmax:FP32": "FP32", "y": "FP32", "relu:FP32": "FP32",
    }  # fmt: skip
    assert set(cast) == set(narrowed.constants) == {f"w:{narrow}", f"v:{narrow}", f"b:{narrow}"}


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_numbers_stay_within_the_precisions_tolerance(precision: str) -> None:
    graph, constants = network()
    inputs = {"x": torch.randn(2, 3, 10, 10)}
    reference = interpret(graph, constants, inputs)

    got = interpret(*in_precision(graph, constants, precision, PackedWeights()), inputs)

    _, relative = errors(got, reference)
    assert 0 < relative < TOLERANCES[precision]
    assert {tensor.dtype for tensor in got.values()} == {torch.float32}


def test_views_follow_what_they_view_and_a_value_is_cast_once() -> None:
    graph, constants = draw(
        (2, 6), {"w": torch.randn(6, 6)}, ["end"],
        unit("early", "braid.reshape", "x", shape=[3, 4]),
        unit("back", "braid.reshape", "early", shape=[2, 6]),
        unit("one", "aten.linear", "back", "w"),
        unit("two", "aten.linear", "back", "w"),
        unit("both", "aten.maximum", "one", "two"),
        unit("turned", "aten.permute", "both", dims=[1, 0]),
        unit("end", "aten.exp", "turned"),
    )  # fmt: skip

    narrowed, _ = in_precision(graph, constants, "bf16", PackedWeights())

    assert dtypes(narrowed) == {
        "early": "FP32", "back": "FP32", "back:BF16": "BF16", "one": "BF16", "two": "BF16",
        "both": "BF16", "turned": "BF16", "turned:FP32": "FP32", "end": "FP32",
    }  # fmt: skip


def test_residual_units_compute_on_narrow_data_too() -> None:
    torch.manual_seed(0)
    weights = {"w": torch.randn(3, 3, 3, 3) / 5, "v": torch.randn(3, 3, 3, 3) / 5}
    graph, constants = draw(
        (1, 3, 6, 6), weights, ["y"],
        unit("a", "aten.convolution", "x", "w", **WINDOW),
        unit("b", "aten.convolution", "a", "v", **WINDOW),
        unit("y", "aten.add", "b", "a", epilogue=[["aten.relu"]]),
    )  # fmt: skip

    narrowed, _ = in_precision(graph, constants, "fp16", PackedWeights())

    kinds = {op.name: op.kind for op in narrowed.operators}
    assert kinds["b"] == "braid.convolution_add"
    assert dtypes(narrowed)["b"] == "FP16"


def test_statistics_of_a_batch_norm_stay_fp32() -> None:
    names = ["scale", "shift", "mean", "var"]
    weights = {name: torch.rand(4) + 1 for name in names}
    graph, constants = draw(
        (2, 4, 5, 5), weights, ["y"], unit("y", "aten.batch_norm", "x", *names, eps=1e-5)
    )

    narrowed, kept = in_precision(graph, constants, "fp16", PackedWeights())

    assert set(kept) == set(names)
    assert dtypes(narrowed) == {"x:FP16": "FP16", "y": "FP16", "y:FP32": "FP32"}


def test_sums_are_subtracted_before_they_are_rounded() -> None:
    graph, constants = draw(
        (2, 64), {}, ["y"],
        unit("a", "aten.sum", "x", dims=[1], keepdim=True),
        unit("b", "braid.sum_square", "x", dims=[1], keepdim=True),
        unit("rest", "aten.sub", "a", "b"),
        unit("y", "aten.sub", "rest", "x"),
    )  # fmt: skip

    narrowed, _ = in_precision(graph, constants, "fp16", PackedWeights())

    assert set(dtypes(narrowed).values()) == {"FP32"}


def test_masks_beyond_the_range_stay_finite() -> None:
    mask = torch.tensor([0.0, -3.4e38, -torch.inf])
    graph, constants = draw((3,), {"m": mask}, ["y"], unit("y", "aten.add", "x", "m"))

    _, cast = in_precision(graph, constants, "fp16", PackedWeights())

    assert cast["m:FP16"].tolist() == [0.0, -65504.0, -torch.inf]


def test_an_epilogue_that_may_overflow_keeps_its_unit_in_fp32() -> None:
    graph, constants = draw(
        (2, 4), {"w": torch.randn(4, 4)}, ["y"],
        unit("y", "aten.linear", "x", "w", epilogue=[["aten.exp"]]),
    )  # fmt: skip

    narrowed, _ = in_precision(graph, constants, "fp16", PackedWeights())

    assert dtypes(narrowed) == {"y": "FP32"}
