from __future__ import annotations

import dataclasses

import pytest
import torch

from braid.core.errors import InvalidArtefact
from braid.core.graph import Branch, Operator, OpGraph
from braid.engine.passes import run_passes
from braid.engine.passes.body import Weights
from braid.engine.passes.fusion import fuse_epilogues
from tests.engine.passes.drawing import Drawing, epilogue, kinds, rewritten


#   x ──> conv ──> relu ──> y
def test_convolution_and_activation_become_one_unit() -> None:
    net = Drawing(x=["batch", 4, 6, 6])
    y = net.op("aten.relu", net.conv("x", 4, 8, bias=True))

    (unit,) = rewritten(net, fuse_epilogues, y).operators

    assert (unit.name, unit.kind, epilogue(unit)) == ("convolution0", "aten.convolution", ["relu"])


@pytest.mark.parametrize(
    "attributes", [{"min": 0.0, "max": 6.0}, {"min": 0.0, "max": None}, {"min": None, "max": 6.0}]
)
def test_attributes_travel_with_the_fused_step(attributes: dict[str, float | None]) -> None:
    net = Drawing(x=["batch", 4, 6, 6])
    conv = net.conv("x", 4, 8)
    net.operators.append(Operator("clip", "aten.clamp", (conv,), ("y",), attributes))

    assert kinds(rewritten(net, fuse_epilogues, "y")) == ["convolution"]


#   a, b ──> add ──> mul(2) ──> relu ──> sub(1, ·) ──> y
def test_a_chain_with_numbers_is_fused_in_order() -> None:
    net = Drawing(a=["batch", 4], b=["batch", 4])
    doubled = net.op("aten.mul", net.op("aten.add", "a", "b"), net.constant(value=2.0))
    flipped = net.op("aten.sub", net.constant(value=1.0), net.op("aten.relu", doubled))

    (unit,) = rewritten(net, fuse_epilogues, flipped).operators

    assert (unit.kind, epilogue(unit)) == ("aten.add", ["affine", "relu", "affine"])


#   x ──> conv ──> relu ──> y      conv has two readers
#           └────> sigmoid ──> z
def test_a_value_with_two_readers_is_not_fused_away() -> None:
    net = Drawing(x=["batch", 4, 6, 6])
    conv = net.conv("x", 4, 8)
    graph = rewritten(net, fuse_epilogues, net.op("aten.relu", conv), net.op("aten.sigmoid", conv))

    assert kinds(graph) == ["convolution", "relu", "sigmoid"]


def test_an_output_of_the_graph_is_not_fused_away() -> None:
    net = Drawing(x=["batch", 4, 6, 6])
    conv = net.conv("x", 4, 8)
    graph = rewritten(net, fuse_epilogues, net.op("aten.relu", conv), conv)

    assert kinds(graph) == ["convolution", "relu"]


def test_a_value_read_twice_by_one_operator_is_not_fused_away() -> None:
    net = Drawing(x=["batch", 4, 6, 6])
    conv = net.conv("x", 4, 8)
    y = net.op("aten.mul", conv, net.op("aten.relu", conv))

    assert kinds(rewritten(net, fuse_epilogues, y)) == ["convolution", "relu", "mul"]


def test_a_clamp_with_a_computed_bound_is_not_unary() -> None:
    net = Drawing(x=["batch", 4, 6, 6], bound=[])
    y = net.op("aten.clamp", net.conv("x", 4, 8), "", "bound")

    assert kinds(rewritten(net, fuse_epilogues, y)) == ["convolution", "clamp"]


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
