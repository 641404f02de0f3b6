"""Activations, residual sums and linear layers in one unit, where nothing that overlaps is lost."""

import dataclasses
import math

import pytest
import torch

from braid.core.errors import InvalidArtefact
from braid.core.graph import Branch, Operator, OpGraph
from braid.engine.passes import run_passes
from braid.engine.passes.body import Weights
from braid.engine.passes.fusion import fuse_epilogues, fuse_flat_linears, fuse_residuals
from braid.engine.passes.patterns import recognise_activations
from braid.engine.passes.run import PASSES
from tests.engine.passes.drawing import Drawing, drawn, epilogue, fused, kinds, left, rewritten


#   x ──> conv ──> relu ──> y
def test_convolution_and_activation_become_one_unit() -> None:
    net = Drawing(x=["batch", 4, 6, 6])
    y = net.op("aten.relu", net.conv("x", 4, 8, bias=True))

    (unit,) = rewritten(net, fuse_epilogues, y).operators

    assert (unit.name, unit.kind, epilogue(unit)) == ("convolution0", "aten.convolution", ["relu"])


#   a, b ──> add ──> mul(2) ──> relu ──> sub(1, ·) ──> y
def test_a_chain_with_numbers_is_fused_in_order() -> None:
    net = Drawing(a=["batch", 4], b=["batch", 4])
    doubled = net.op("aten.mul", net.op("aten.add", "a", "b"), net.constant(value=2.0))
    flipped = net.op("aten.sub", net.constant(value=1.0), net.op("aten.relu", doubled))

    (unit,) = rewritten(net, fuse_epilogues, flipped).operators

    assert (unit.kind, epilogue(unit)) == ("aten.add", ["affine", "relu", "affine"])


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("clamp(c, min=0.0, max=6.0)", ["convolution"]),  # attributes travel with the step
        ("clamp(c, min=0.0, max=None)", ["convolution"]),
        ("clamp(c, min=None, max=6.0)", ["convolution"]),
        ("clamp(c, '', bound)", ["convolution", "clamp"]),  # with a computed bound
        ("relu(c), sigmoid(c)", ["convolution", "relu", "sigmoid"]),  # two readers
        ("relu(c), c", ["convolution", "relu"]),  # an output
        ("mul(c, relu(c))", ["convolution", "relu", "mul"]),  # read twice by one operator
    ],
)
def test_only_what_one_unary_operator_reads_is_fused(text: str, kinds: list[str]) -> None:
    net = f"c = conv(x, 4, 8); {text}"

    assert left(fuse_epilogues, net, x=["batch", 4, 6, 6], bound=[]) == kinds


def test_activations_inside_a_branch_are_fused() -> None:
    net = Drawing(x=["batch", 4, 6, 6])
    net.conv("x", 4, 8)
    relu = Operator("relu", "aten.relu", net.operators[0].outputs, ("r",))
    arm = Branch((net.operators.pop(), relu), ("r",))
    net.weights["yes"] = torch.tensor(True)
    y = net.cond("yes", arm, Branch((), ("x",)))

    (cond,) = rewritten(net, fuse_epilogues, y).operators

    assert [op.kind for op in cond.branches[0].operators] == ["aten.convolution"]


def test_the_verifier_names_the_pass_that_broke_the_graph() -> None:
    def forgetful(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
        return dataclasses.replace(graph, operators=graph.operators[1:]), weights

    net = Drawing(x=["batch", 4])
    drawn = net.graph(net.op("aten.neg", net.op("aten.relu", "x")))

    with pytest.raises(InvalidArtefact, match="pass forgetful broke the graph"):
        run_passes(*drawn, (forgetful,))


def test_an_unknown_kind_is_refused() -> None:
    net = Drawing(x=["batch", 4])

    with pytest.raises(InvalidArtefact, match="no operator kind"):
        run_passes(*net.graph(net.op("aten.rm_rf", "x")))


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


CLIPPED = "clamp(add(x, 3.0), min=0.0, max=6.0)"
ERF = f"add(erf(div(x, {math.sqrt(2)})), 1.0)"
CUBED = f"mul(add(x, mul({{}}, 0.044715)), {math.sqrt(2 / math.pi)})"
SLOPE = f"mul(mul(x, {math.sqrt(2 / math.pi)}), add(1.0, mul(mul(0.044715, x), x)))"
RECOGNISED = {
    "silu": ["mul(x, sigmoid(x))", "mul(sigmoid(x), x)"],
    "hardswish": [
        f"mul(x, div({CLIPPED}, 6.0))",
        f"div(mul(x, {CLIPPED}), 6.0)",
        f"mul(mul(x, {CLIPPED}), const(1, value={1 / 6}))",
        f"mul(hardsigmoid(x, alpha={1 / 6}, beta=0.5), x)",
    ],
    "gelu": [
        f"mul(mul(x, 0.5), {ERF})",
        f"mul(mul(x, {ERF}), 0.5)",
        *(
            f"mul(mul(x, 0.5), add(tanh({inner}), 1.0))"
            for inner in (
                CUBED.format("pow(x, value=3.0)"),
                CUBED.format("mul(mul(x, x), x)"),
                SLOPE,
            )
        ),
    ],
}


@pytest.mark.parametrize(
    ("text", "kind"), [(text, kind) for kind, texts in RECOGNISED.items() for text in texts]
)
def test_every_way_to_write_an_activation_is_recognised(text: str, kind: str) -> None:
    assert left(recognise_activations, text, x=["batch", 4]) == [kind]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("mul(x, sigmoid(z))", ["sigmoid", "mul"]),
        ("gate = sigmoid(x); mul(x, gate), gate", ["sigmoid", "mul"]),
        ("mul(x, hardsigmoid(x, alpha=0.2, beta=0.5))", ["hardsigmoid", "mul"]),
    ],
)
def test_gates_of_other_values_slopes_and_readers_stay(text: str, kinds: list[str]) -> None:
    assert left(recognise_activations, text, x=["batch", 4], z=["batch", 4]) == kinds


def test_a_convolution_and_its_recognised_activation_are_one_unit() -> None:
    text = "c = norm(conv(x, 4, 8), 8); mul(c, sigmoid(c))"

    assert left(PASSES, text, 1e-5, x=["batch", 4, 6, 6]) == ["convolution"]
