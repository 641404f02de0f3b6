"""Arithmetic by channel goes into the weights before it, unless that would change a number."""

import pytest

from braid.core.tensor import Dim
from braid.engine.passes.affine import fold_affine, matmul_to_linear
from tests.engine.passes.drawing import left

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
