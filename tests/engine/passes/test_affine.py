"""Arithmetic by channel and sums of multiples: in weights or one unit, with the same numbers."""

import pytest

from braid.core.graph import OpGraph
from braid.core.tensor import Dim
from braid.engine.passes.affine import fold_affine, matmul_to_linear
from braid.engine.passes.body import Weights
from braid.engine.passes.fusion import MAX_TERMS, fuse_weighted_sums
from tests.engine.passes.drawing import drawn, epilogue, fused, kinds, left

IMAGES: list[Dim] = ["batch", 4, 6, 6]
WINDOW = "stride=[1, 1], padding=[1, 1], dilation=[1, 1]"
SHARING = f"convolution(x, w, {WINDOW})"
TRANSPOSED = f"convolution(x, const({{}}, 3, 3), {WINDOW}, transposed=True, groups={{}})"
ROWS = "reshape(linear(x, const(8, 6)), shape=[-1, {}])"


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        *(
            (f"norm(conv(x, 4, 8, {bias}, {groups}), 8)", ["convolution"])
            for bias in (False, True)
            for groups in (1, 2)
        ),
        (f"norm({TRANSPOSED.format('4, 6', 1)}, 6)", ["convolution"]),
        (f"norm({TRANSPOSED.format('4, 3', 2)}, 6)", ["convolution"]),
        *(
            (f"{kind}(conv(x, 4, 8), const({shape}))", ["convolution"])
            for kind in ("add", "sub", "mul", "div")
            for shape in ("", "1", "8, 1, 1", "1, 8, 1, 1")
        ),
        ("sub(const(8, 1, 1), conv(x, 4, 8))", ["convolution"]),
        # as caffe2 exports a batch norm
        ("relu(add(mul(norm(x, 4), const(4, 1, 1)), const(4, 1, 1)))", ["batch_norm", "relu"]),
        # two convolutions that share a weight
        (f"w = const(8, 4, 3, 3); norm({SHARING}, 8), norm({SHARING}, 8)", ["convolution"] * 2),
    ],
)
def test_arithmetic_by_channel_folds_into_images_weights(text: str, kinds: list[str]) -> None:
    assert left(fold_affine, text, 1e-5, x=IMAGES) == kinds


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        # not by channel
        *(
            (f"mul(conv(x, 4, 8), const({shape}))", ["convolution", "mul"])
            for shape in ("6", "6, 1", "8, 6, 6", "2, 1, 1, 1")
        ),
        # others read the convolution, or it is an output
        ("c = conv(x, 4, 8); norm(c, 8), relu(c)", ["convolution", "batch_norm", "relu"]),
        ("c = conv(x, 4, 8); norm(c, 8), c", ["convolution", "batch_norm"]),
        # beyond the largest number
        (f"w = const(8, 4, 3, 3, value=1e30); mul({SHARING}, 1e30)", ["convolution", "mul"]),
    ],
)
def test_what_would_change_numbers_of_images_stays(text: str, kinds: list[str]) -> None:
    assert left(fold_affine, text, x=IMAGES) == kinds


@pytest.mark.parametrize(
    ("shape", "text", "kinds"),
    [
        (["batch", 5, 4], "add(const(3), matmul(x, const(4, 3)))", ["linear"]),
        (["batch", 4], "norm(linear(x, const(3, 4)), 3)", ["linear"]),
        # along another axis than the channels of the linear layer
        (["batch", 3, 4], "norm(linear(x, const(3, 4)), 3)", ["linear", "batch_norm"]),
        # as LeViT is written
        (
            ["batch", 5, 6],
            f"reshape(mul(norm({ROWS.format(8)}, 8), const(8)), shape=[-1, 5, 8])",
            ["linear", "reshape", "reshape"],
        ),
        # rows of another width
        (["batch", 4, 6], f"norm({ROWS.format(16)}, 16)", ["linear", "reshape", "batch_norm"]),
        # others read the linear layer
        (
            ["batch", 4, 6],
            "y = linear(x, const(8, 6)); norm(reshape(y, shape=[-1, 8]), 8), y",
            ["linear", "reshape", "batch_norm"],
        ),
    ],
)
def test_arithmetic_on_the_channels_of_rows(shape: list[Dim], text: str, kinds: list[str]) -> None:
    assert left([matmul_to_linear, fold_affine], text, 1e-5, x=shape) == kinds


RELU = ", epilogue=[['aten.relu']]"


def summed(text: str) -> tuple[OpGraph, Weights]:
    drawing, outputs = drawn(text, a=(1, 4, 5, 5), b=(1, 4, 5, 5), c=(1, 4, 5, 5))
    return drawing.static(*outputs)


@pytest.mark.parametrize(
    ("text", "terms", "weights"),
    [
        ("add(add(mul(a, 0.25), mul(b, -3.0)), c)", "abc", [0.25, -3.0, 1.0]),
        # the number stands first, and a sum is nested on the left
        ("add(add(b, c), mul(0.25, a))", "bca", [1.0, 1.0, 0.25]),
        ("add(mul(a, 0.25), a)", "aa", [0.25, 1.0]),
    ],
)
@pytest.mark.parametrize("activation", ["", RELU])
def test_products_and_sums_become_one_unit_with_its_activation(
    text: str, terms: str, weights: list[float], activation: str
) -> None:
    (unit,) = fused(fuse_weighted_sums, *summed(f"{text[:-1]}{activation})")).operators

    assert (unit.kind, unit.inputs) == ("braid.weighted_sum", tuple(terms))
    assert unit.attributes["weights"] == weights
    assert epilogue(unit) == (["relu"] if activation else [])


@pytest.mark.parametrize(
    "text",
    [
        "add(add(a, b), c)",  # there is no product
        f"add(mul(a, 0.25{RELU}), b)",
        "add(mul(a, 0.0), b)",
        "add(mul(a, 1e9), b)",
        "add(mul(a, b), c)",
    ],
)
def test_other_sums_stay(text: str) -> None:
    graph, constants = summed(text)

    assert fuse_weighted_sums(graph, constants) == graph


def test_what_others_read_is_not_taken_up() -> None:
    graph = fused(fuse_weighted_sums, *summed("p = mul(a, 0.25); p, add(p, mul(b, 0.7))"))

    assert kinds(graph) == ["mul", "weighted_sum"]


def test_long_sums_become_several_units() -> None:
    total = "mul(a, 0.25)"
    for index in range(1, 2 * MAX_TERMS):
        total = f"add({total}, mul({'abc'[index % 3]}, 0.25))"

    units = fused(fuse_weighted_sums, *summed(total)).operators

    assert {op.kind for op in units} == {"braid.weighted_sum"}
    assert max(len(op.inputs) for op in units) == MAX_TERMS
    assert len(units) == 3
