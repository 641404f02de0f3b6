"""Activations behind a unit become a part of it, where nothing else reads what it made."""

import dataclasses

import pytest
import torch

from braid.core.errors import InvalidArtefact
from braid.core.graph import Branch, Operator, OpGraph
from braid.engine.passes import run_passes
from braid.engine.passes.body import Weights
from braid.engine.passes.fusion import fuse_epilogues
from tests.engine.passes.drawing import Drawing, epilogue, left, rewritten


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
