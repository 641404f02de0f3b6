"""Nested concatenations, padding in front of convolutions, normalisations in several operators."""

from __future__ import annotations

import pytest

from braid.core.graph import Literal
from braid.engine.passes.folding import flatten_concats, fold_pads
from braid.engine.passes.patterns import recognise_norms
from tests.engine.passes.drawing import Drawing, kinds, rewritten

LAST: dict[str, Literal] = {"dims": [-1], "keepdim": True}


#   a ──> cat ──> cat ──> y
#   b ──┘    c ──┘
def test_nested_concats_become_one() -> None:
    drawing = Drawing(a=("n", 2), b=("n", 3), c=("n", 4))
    inner = drawing.op("aten.cat", "a", "b", dim=1)
    outer = drawing.op("aten.cat", inner, "c", dim=1)

    assert kinds(rewritten(drawing, flatten_concats, outer)) == ["cat"]


def test_a_concat_along_another_axis_or_read_twice_stays() -> None:
    drawing = Drawing(a=("n", 4), b=("n", 4))
    inner = drawing.op("aten.cat", "a", "b", dim=0)
    outer = drawing.op("aten.cat", inner, inner, dim=1)

    assert kinds(rewritten(drawing, flatten_concats, outer)) == ["cat", "cat"]


def test_even_padding_goes_into_the_convolution() -> None:
    drawing = Drawing(x=("n", 3, 9, 9))
    pads: list[Literal] = [0, 0, 1, 2, 0, 0, 1, 2]
    padded = drawing.op("braid.pad", "x", pads=pads, mode="constant", value=0.0)
    y = drawing.conv(padded, 3, 4)

    assert kinds(rewritten(drawing, fold_pads, y)) == ["convolution"]


@pytest.mark.parametrize(
    ("pads", "value"),
    [([0, 0, 1, 1, 0, 0, 2, 1], 0.0), ([0, 1, 1, 1, 0, 1, 1, 1], 0.0), ([0, 0, 1, 1] * 2, 0.5)],
)
def test_other_padding_stays(pads: list[Literal], value: float) -> None:
    drawing = Drawing(x=("n", 4, 9, 9))
    padded = drawing.op("braid.pad", "x", pads=pads, mode="constant", value=value)
    y = drawing.conv(padded, 6 if pads[1] else 4, 4)

    assert kinds(rewritten(drawing, fold_pads, y)) == ["pad", "convolution"]


def root(drawing: Drawing, x: str, square: str) -> str:
    """sqrt(mean(x^2) + eps), the square written in one of two ways."""
    is_power = square == "pow"
    squared = drawing.op("braid.pow", x, value=2) if is_power else drawing.op("aten.mul", x, x)
    mean = drawing.op("aten.mean", squared, **LAST)
    eps = drawing.constant(value=1e-3)
    return drawing.op("aten.sqrt", drawing.op("aten.add", mean, eps))


@pytest.mark.parametrize("square", ["pow", "mul"])
@pytest.mark.parametrize("reciprocal", [True, False])
def test_a_root_mean_square_norm_is_recognised(square: str, reciprocal: bool) -> None:
    drawing = Drawing(x=("n", 5, 8))
    scale = root(drawing, "x", square)
    if reciprocal:
        one = drawing.constant(value=1.0)
        normed = drawing.op("aten.mul", "x", drawing.op("aten.div", one, scale))
    else:
        normed = drawing.op("aten.div", "x", scale)
    y = drawing.op("aten.mul", normed, drawing.constant(8))

    assert kinds(rewritten(drawing, recognise_norms, y)) == ["rms_norm"]


def test_a_layer_norm_is_recognised() -> None:
    drawing = Drawing(x=("n", 5, 8))
    centred = drawing.op("aten.sub", "x", drawing.op("aten.mean", "x", **LAST))
    normed = drawing.op("aten.div", centred, root(drawing, centred, "pow"))
    y = drawing.op("aten.mul", normed, drawing.constant(8))
    y = drawing.op("aten.add", y, drawing.constant(8))

    assert kinds(rewritten(drawing, recognise_norms, y)) == ["layer_norm"]


def test_a_norm_whose_middle_is_read_elsewhere_stays() -> None:
    drawing = Drawing(x=("n", 8))
    scale = root(drawing, "x", "mul")
    normed = drawing.op("aten.div", "x", scale)
    y = drawing.op("aten.mul", normed, drawing.constant(8))
    z = drawing.op("aten.add", y, scale)

    assert "rms_norm" not in kinds(rewritten(drawing, recognise_norms, z))


def test_a_layer_norm_whose_weight_is_an_input_keeps_its_sum() -> None:
    drawing = Drawing(x=("n", 5, 8), weight=(8,))
    normed = drawing.op("aten.layer_norm", "x", "weight", "", axis=-1, eps=1e-5)
    y = drawing.op("aten.add", normed, drawing.constant(8))

    assert kinds(rewritten(drawing, recognise_norms, y)) == ["layer_norm", "add"]
