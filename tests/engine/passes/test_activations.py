from __future__ import annotations

import math

import pytest

from braid.engine.passes.patterns import recognise_activations
from braid.engine.passes.run import PASSES
from tests.engine.passes.drawing import Drawing, kinds, rewritten


@pytest.mark.parametrize("swap", [False, True])
def test_x_times_its_sigmoid_is_silu(swap: bool) -> None:
    net = Drawing(x=["batch", 4])
    operands = ["x", net.op("aten.sigmoid", "x")]
    y = net.op("aten.mul", *(operands[::-1] if swap else operands))

    assert kinds(rewritten(net, recognise_activations, y)) == ["silu"]


def test_a_sigmoid_of_something_else_is_a_gate() -> None:
    net = Drawing(x=["batch", 4], z=["batch", 4])
    y = net.op("aten.mul", "x", net.op("aten.sigmoid", "z"))

    assert kinds(rewritten(net, recognise_activations, y)) == ["sigmoid", "mul"]


def test_a_sigmoid_with_another_reader_is_not_silu() -> None:
    net = Drawing(x=["batch", 4])
    gate = net.op("aten.sigmoid", "x")
    graph = rewritten(net, recognise_activations, net.op("aten.mul", "x", gate), gate)

    assert kinds(graph) == ["sigmoid", "mul"]


#   x ──> add(3) ──> clamp(0, 6) ──> div(6) ──> mul(x)     in the orders that exporters use
@pytest.mark.parametrize("order", ["gate", "last", "reciprocal", "hardsigmoid"])
def test_hardswish_is_recognised(order: str) -> None:
    net = Drawing(x=["batch", 4])
    shifted = net.op("aten.add", "x", net.constant(value=3.0))
    clipped = net.op("aten.clamp", shifted, min=0.0, max=6.0)
    six, sixth = net.constant(value=6.0), net.constant(1, value=1 / 6)
    if order == "gate":
        y = net.op("aten.mul", "x", net.op("aten.div", clipped, six))
    elif order == "last":
        y = net.op("aten.div", net.op("aten.mul", "x", clipped), six)
    elif order == "reciprocal":
        y = net.op("aten.mul", net.op("aten.mul", "x", clipped), sixth)
    else:
        y = net.op("aten.mul", net.op("braid.hardsigmoid", "x", alpha=1 / 6, beta=0.5), "x")

    assert kinds(rewritten(net, recognise_activations, y)) == ["hardswish"]


def test_a_hardsigmoid_of_another_slope_is_not_hardswish() -> None:
    net = Drawing(x=["batch", 4])
    gate = net.op("braid.hardsigmoid", "x", alpha=0.2, beta=0.5)
    y = net.op("aten.mul", "x", gate)

    assert kinds(rewritten(net, recognise_activations, y)) == ["hardsigmoid", "mul"]


@pytest.mark.parametrize("half_first", [False, True])
def test_gelu_by_erf_is_recognised(half_first: bool) -> None:
    net = Drawing(x=["batch", 4])
    half = net.constant(value=0.5)
    erf = net.op("aten.erf", net.op("aten.div", "x", net.constant(value=math.sqrt(2))))
    gate = net.op("aten.add", erf, net.constant(value=1.0))
    if half_first:
        y = net.op("aten.mul", net.op("aten.mul", "x", half), gate)
    else:
        y = net.op("aten.mul", net.op("aten.mul", "x", gate), half)

    assert kinds(rewritten(net, recognise_activations, y)) == ["gelu"]


def test_a_convolution_and_its_recognised_activation_are_one_unit() -> None:
    net = Drawing(x=["batch", 4, 6, 6])
    conv = net.norm(net.conv("x", 4, 8), 8)
    y = net.op("aten.mul", conv, net.op("aten.sigmoid", conv))

    assert kinds(rewritten(net, PASSES, y, tolerance=1e-5)) == ["convolution"]


@pytest.mark.parametrize("order", ["power", "cube", "slope"])
def test_gelu_by_tanh_is_recognised(order: str) -> None:
    net = Drawing(x=["batch", 4])
    steep = net.constant(value=0.044715)
    root = net.constant(value=math.sqrt(2 / math.pi))
    if order == "slope":
        squared = net.op("aten.mul", net.op("aten.mul", steep, "x"), "x")
        slope = net.op("aten.add", net.constant(value=1.0), squared)
        inner = net.op("aten.mul", net.op("aten.mul", "x", root), slope)
    else:
        cube = (
            net.op("braid.pow", "x", value=3.0)
            if order == "power"
            else net.op("aten.mul", net.op("aten.mul", "x", "x"), "x")
        )
        bent = net.op("aten.add", "x", net.op("aten.mul", cube, steep))
        inner = net.op("aten.mul", bent, root)
    one = net.op("aten.add", net.op("aten.tanh", inner), net.constant(value=1.0))
    half = net.op("aten.mul", "x", net.constant(value=0.5))
    y = net.op("aten.mul", half, one)

    assert kinds(rewritten(net, recognise_activations, y)) == ["gelu"]
