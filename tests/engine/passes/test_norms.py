"""Nested concatenations, padding in front of convolutions, norms as exporters write them."""

import pytest

from braid.core.graph import OpGraph
from braid.core.tensor import Dim
from braid.engine.passes import run_passes
from braid.engine.passes.body import Weights
from braid.engine.passes.folding import flatten_concats, fold_pads
from braid.engine.passes.group_norms import fuse_group_norms
from braid.engine.passes.patterns import recognise_norms
from braid.engine.passes.specialise import specialise
from tests.engine.passes.drawing import drawn, epilogue, fused, kinds, left


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


PLAIN = "const(4, value=1.0), const(4, value=0.0)"


def normed(
    own: str = PLAIN, shape: str = "8, 1, 1", apart: str = "0, 4, -1"
) -> tuple[OpGraph, Weights]:
    """Reshape, instance norm with weights of its own, reshape, product, sum, relu."""
    groups = f"instance_norm(reshape(x, shape=[{apart}]), {own}, eps=1e-3)"
    whole = f"reshape({groups}, shape=[2, 8, 3, 5])"
    text = f"relu(add(mul({whole}, const({shape})), const({shape})))"
    drawing, outputs = drawn(text, x=(2, 8, 3, 5))
    template, weights = run_passes(*drawing.graph(*outputs))
    return specialise(template, weights, template.inputs)


def test_all_of_it_becomes_one_unit_with_its_activation() -> None:
    (unit,) = fused(fuse_group_norms, *normed()).operators

    assert (unit.kind, epilogue(unit)) == ("braid.group_norm", ["relu"])


@pytest.mark.parametrize("how", [{"own": "const(4), const(4)"}, {"shape": "5"}], ids=str)
def test_other_products_and_sums_stay(how: dict[str, str]) -> None:
    assert kinds(fused(fuse_group_norms, *normed(**how))) == ["group_norm", "mul", "add"]


def test_a_norm_of_something_else_than_groups_of_channels_stays() -> None:
    graph, constants = normed(apart="4, 4, -1")

    assert fuse_group_norms(graph, constants) == graph
