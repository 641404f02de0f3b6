"""Residual sums and linear layers behind reshapes: fused where nothing that overlaps is lost."""

import pytest

from braid.engine.passes.fusion import fuse_flat_linears, fuse_residuals
from tests.engine.passes.drawing import drawn, epilogue, fused, kinds

RELU = ", epilogue=[['aten.relu']]"


def convolved(x: str, more: str = "") -> str:
    window = "stride=[1, 1], padding=[1, 1], dilation=[1, 1]"
    return f"convolution({x}, const(4, 4, 3, 3), {window}{more})"


#   x ─> a ─> b ─> y      the summand x is there before b can start
#   └──────────────┘
SHORTCUT = f"add({convolved(convolved('x', RELU))}, x{RELU})"
IN_A_ROW = f"p = add(x, {convolved('x')}{RELU}); add({convolved('p')}, p)"

#   x ─> a ─┐
#   └──> b ─┴─> y         a and b could run side by side; y as part of b would wait for a
BRANCHES = f"add({convolved('x')}, {convolved('x')})"
READ_BEFORE = f"a = {convolved('x')}; a, add(a, x)"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (SHORTCUT, ["convolution", "convolution_add"]),
        (IN_A_ROW, ["convolution_add", "convolution_add"]),
        (BRANCHES, ["convolution", "convolution", "add"]),
        (READ_BEFORE, ["convolution", "add"]),
    ],
)
def test_a_sum_is_fused_with_what_must_run_last_before_it(text: str, left: list[str]) -> None:
    drawing, outputs = drawn(text, x=(1, 4, 5, 5))

    graph = fused(lambda graph, _: fuse_residuals(graph), *drawing.static(*outputs))

    assert kinds(graph) == left


def test_rows_of_a_linear_layer_keep_their_axes() -> None:
    rows = "reshape(linear(reshape(x, shape=[-1, 4]), const(4, 4), const(4)), shape=[2, 3, 4])"
    drawing, outputs = drawn(f"add(gelu({rows}, approximate='none'), x)", x=(2, 3, 4))

    graph = fused(
        lambda *given: fuse_residuals(fuse_flat_linears(*given)), *drawing.static(*outputs)
    )

    assert kinds(graph) == ["linear", "add"]
    assert epilogue(graph.operators[0]) == ["gelu"]


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        # put otherwise than they came
        ((2, 3, 4), "reshape(linear(reshape(x, shape=[6, 4]), const(4, 4)), shape=[3, 2, 4])"),
        # a number of one row is no row
        ((4,), "reshape(linear(reshape(x, shape=[1, 4]), const(1, 4)), shape=[])"),
    ],
)
def test_other_rows_stay_apart(shape: tuple[int, ...], text: str) -> None:
    drawing, outputs = drawn(text, x=shape)

    graph = fuse_flat_linears(*drawing.static(*outputs))

    assert kinds(graph) == ["reshape", "linear", "reshape"]
