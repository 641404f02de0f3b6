"""Nested concatenations, padding in front of convolutions, normalisations in several operators."""

import pytest

from braid.core.tensor import Dim
from braid.engine.passes.folding import flatten_concats, fold_pads
from braid.engine.passes.patterns import recognise_norms
from tests.engine.passes.drawing import left


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("cat(cat(a, b, dim=1), c, dim=1)", 1),
        # along another axis, and read twice
        ("inner = cat(a, a, dim=0); cat(inner, inner, dim=1)", 2),
    ],
)
def test_nested_concats_become_one(text: str, count: int) -> None:
    assert left(flatten_concats, text, a=("n", 2), b=("n", 3), c=("n", 4)) == ["cat"] * count


@pytest.mark.parametrize(
    ("channels", "pads", "value", "kinds"),
    [
        (4, [0, 0, 1, 2] * 2, 0.0, ["convolution"]),
        (4, [0, 0, 1, 1, 0, 0, 2, 1], 0.0, ["pad", "convolution"]),
        (6, [0, 1, 1, 1] * 2, 0.0, ["pad", "convolution"]),
        (4, [0, 0, 1, 1] * 2, 0.5, ["pad", "convolution"]),
    ],
)
def test_even_padding_with_zeros_goes_into_the_convolution(
    channels: int, pads: list[int], value: float, kinds: list[str]
) -> None:
    padded = f"pad(x, pads={pads}, mode='constant', value={value})"

    assert left(fold_pads, f"conv({padded}, {channels}, 4)", x=("n", 4, 9, 9)) == kinds


MEAN = "mean({}, dims=[-1], keepdim=True)"
ROOT = f"sqrt(add({MEAN}, 0.001))"
SQUARES = [ROOT.format(square) for square in ("pow(x, value=2)", "mul(x, x)")]
CENTRED = f"c = sub(x, {MEAN.format('x')})"
ROWS: list[Dim] = ["n", 5, 8]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        *((f"mul(div(x, {root}), const(8))", ["rms_norm"]) for root in SQUARES),
        *((f"mul(mul(x, div(1.0, {root})), const(8))", ["rms_norm"]) for root in SQUARES),
        (
            f"{CENTRED}; add(mul(div(c, {ROOT.format('pow(c, value=2)')}), const(8)), const(8))",
            ["layer_norm"],
        ),
        # its weight is an input
        ("add(layer_norm(x, w, '', axis=-1, eps=1e-5), const(8))", ["layer_norm", "add"]),
    ],
)
def test_norms_are_recognised(text: str, kinds: list[str]) -> None:
    assert left(recognise_norms, text, x=ROWS, w=[8]) == kinds


def test_a_norm_whose_middle_is_read_elsewhere_stays() -> None:
    text = f"root = {SQUARES[1]}; add(mul(div(x, root), const(8)), root)"

    assert "rms_norm" not in left(recognise_norms, text, x=ROWS)
