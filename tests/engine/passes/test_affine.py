from __future__ import annotations

from collections.abc import Sequence

import pytest

from braid.engine.passes.affine import fold_affine, matmul_to_linear
from braid.engine.passes.body import Pass
from tests.engine.passes.drawing import CONV, Drawing, kinds, rewritten


def folded(net: Drawing, *outputs: str, first: Sequence[Pass] = ()) -> list[str]:
    """Kinds that the pass leaves; weights that it folds are rounded."""
    return kinds(rewritten(net, [*first, fold_affine], *outputs, tolerance=1e-5))


#   x ──> conv ──> batch_norm ──> y
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_batch_norm_folds_into_a_convolution(bias: bool, groups: int) -> None:
    net = Drawing(x=["batch", 4, 6, 6])
    y = net.norm(net.conv("x", 4, 8, bias, groups), 8)

    assert folded(net, y) == ["convolution"]


@pytest.mark.parametrize("groups", [1, 2])
def test_batch_norm_folds_into_a_transposed_convolution(groups: int) -> None:
    net = Drawing(x=["batch", 4, 6, 6])
    weight = net.constant(4, 6 // groups, 3, 3)
    up = net.op("aten.convolution", "x", weight, **CONV, transposed=True, groups=groups)
    y = net.norm(up, 6)

    assert folded(net, y) == ["convolution"]


#   x ──> batch_norm ──> mul [c,1,1] ──> add [c,1,1] ──> relu      as caffe2 exports it
def test_scale_and_shift_fold_into_a_batch_norm() -> None:
    net = Drawing(x=["batch", 4, 6, 6])
    scaled = net.op("aten.mul", net.norm("x", 4), net.constant(4, 1, 1))
    y = net.op("aten.relu", net.op("aten.add", scaled, net.constant(4, 1, 1)))

    assert folded(net, y) == ["batch_norm", "relu"]


@pytest.mark.parametrize("kind", ["add", "sub", "mul", "div"])
@pytest.mark.parametrize("shape", [(), (1,), (8, 1, 1), (1, 8, 1, 1)])
def test_arithmetic_by_channel_folds_into_a_convolution(kind: str, shape: tuple[int, ...]) -> None:
    net = Drawing(x=["batch", 4, 6, 6])
    y = net.op(f"aten.{kind}", net.conv("x", 4, 8), net.constant(*shape))

    assert folded(net, y) == ["convolution"]


def test_a_constant_minus_a_convolution_folds() -> None:
    net = Drawing(x=["batch", 4, 6, 6])
    y = net.op("aten.sub", net.constant(8, 1, 1), net.conv("x", 4, 8))

    assert folded(net, y) == ["convolution"]


#   x ──> matmul(w) ──> add(bias) ──> y
def test_matmul_and_bias_become_one_linear() -> None:
    net = Drawing(x=["batch", 5, 4])
    product = net.op("aten.matmul", "x", net.constant(4, 3))
    y = net.op("aten.add", net.constant(3), product)

    assert folded(net, y, first=[matmul_to_linear]) == ["linear"]


def test_batch_norm_after_a_linear_of_rank_2_folds() -> None:
    net = Drawing(x=["batch", 4])
    y = net.norm(net.op("aten.linear", "x", net.constant(3, 4)), 3)

    assert folded(net, y) == ["linear"]


def test_batch_norm_along_another_axis_than_a_linears_channels_stays() -> None:
    net = Drawing(x=["batch", 3, 4])
    y = net.norm(net.op("aten.linear", "x", net.constant(3, 4)), 3)

    assert kinds(rewritten(net, fold_affine, y)) == ["linear", "batch_norm"]


@pytest.mark.parametrize("shape", [(6,), (6, 1), (8, 6, 6), (2, 1, 1, 1)])
def test_a_constant_that_is_not_by_channel_stays(shape: tuple[int, ...]) -> None:
    net = Drawing(x=["batch", 4, 6, 6])
    y = net.op("aten.mul", net.conv("x", 4, 8), net.constant(*shape))

    assert kinds(rewritten(net, fold_affine, y)) == ["convolution", "mul"]


def test_a_convolution_with_two_readers_keeps_its_numbers() -> None:
    net = Drawing(x=["batch", 4, 6, 6])
    conv = net.conv("x", 4, 8)
    graph = rewritten(net, fold_affine, net.norm(conv, 8), net.op("aten.relu", conv))

    assert kinds(graph) == ["convolution", "batch_norm", "relu"]


def test_a_convolution_that_is_an_output_keeps_its_numbers() -> None:
    net = Drawing(x=["batch", 4, 6, 6])
    conv = net.conv("x", 4, 8)
    graph = rewritten(net, fold_affine, net.norm(conv, 8), conv)

    assert kinds(graph) == ["convolution", "batch_norm"]


def test_two_convolutions_sharing_a_weight_fold_apart() -> None:
    net = Drawing(x=["batch", 4, 6, 6])
    weight = net.constant(8, 4, 3, 3)
    convs = [net.op("aten.convolution", "x", weight, **CONV) for _ in range(2)]
    norms = [net.norm(conv, 8) for conv in convs]

    assert folded(net, *norms) == ["convolution", "convolution"]


def test_a_fold_that_overflows_is_not_made() -> None:
    net = Drawing(x=["batch", 4, 6, 6])
    weight = net.constant(8, 4, 3, 3, value=1e30)
    conv = net.op("aten.convolution", "x", weight, **CONV)
    y = net.op("aten.mul", conv, net.constant(value=1e30))

    assert folded(net, y) == ["convolution", "mul"]


#   x ──> linear ──> reshape [-1, 8] ──> batch_norm ──> mul [8] ──> reshape      as LeViT is written
def test_scale_and_shift_of_rows_fold_into_the_linear_before_them() -> None:
    net = Drawing(x=["batch", 5, 6])
    rows = net.op("braid.reshape", net.op("aten.linear", "x", net.constant(8, 6)), shape=[-1, 8])
    scaled = net.op("aten.mul", net.norm(rows, 8), net.constant(8))
    y = net.op("braid.reshape", scaled, shape=[-1, 5, 8])

    assert folded(net, y) == ["linear", "reshape", "reshape"]


def test_rows_of_another_width_keep_their_norm() -> None:
    net = Drawing(x=["batch", 4, 6])
    rows = net.op("braid.reshape", net.op("aten.linear", "x", net.constant(8, 6)), shape=[-1, 16])
    y = net.norm(rows, 16)

    assert kinds(rewritten(net, fold_affine, y)) == ["linear", "reshape", "batch_norm"]


def test_a_linear_that_others_read_keeps_its_weights() -> None:
    net = Drawing(x=["batch", 4, 6])
    y = net.op("aten.linear", "x", net.constant(8, 6))
    normed = net.norm(net.op("braid.reshape", y, shape=[-1, 8]), 8)

    assert kinds(rewritten(net, fold_affine, normed, y)) == ["linear", "reshape", "batch_norm"]
