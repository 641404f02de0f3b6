from __future__ import annotations

import torch

from braid.core.graph import Branch, Operator
from braid.engine.passes.clean import drop_dead, drop_no_ops, merge_duplicates
from tests.engine.passes.drawing import Drawing, assert_same_numbers, kinds, rewritten


#   x ──> identity ──> mul(1) ──> relu ──> y
def test_no_ops_are_dropped() -> None:
    net = Drawing(x=["batch", 4])
    same = net.op("aten.mul", net.op("braid.identity", "x"), net.constant(value=1.0))
    y = net.op("aten.relu", same)

    (relu,) = rewritten(net, drop_no_ops, y).operators

    assert (relu.kind, relu.inputs) == ("aten.relu", ("x",))


def test_an_identity_from_input_to_output_stays() -> None:
    net = Drawing(x=["batch", 4])
    inner = net.op("braid.identity", "x")
    y = net.op("braid.identity", inner)

    (left,) = rewritten(net, drop_no_ops, y).operators

    assert (left.kind, left.inputs) == ("braid.identity", ("x",))


def test_an_identity_that_is_an_output_hands_its_place_to_its_source() -> None:
    net = Drawing(x=["batch", 4])
    relu = net.op("aten.relu", "x")

    graph = rewritten(net, drop_no_ops, net.op("braid.identity", relu), relu)

    assert graph.outputs == {"y0": relu, "y1": relu}


def test_adding_zeros_with_a_shape_is_kept_because_it_may_broadcast() -> None:
    net = Drawing(x=["batch", 1])
    y = net.op("aten.add", "x", net.constant(1, 4, value=0.0))

    assert kinds(rewritten(net, drop_no_ops, y)) == ["add"]


#   x ──> relu ──> add ──> y        both relus compute the same
#    └──> relu ────┘
def test_repeated_operators_run_once() -> None:
    net = Drawing(x=["batch", 4])
    y = net.op("aten.add", net.op("aten.relu", "x"), net.op("aten.relu", "x"))

    assert kinds(rewritten(net, merge_duplicates, y)) == ["relu", "add"]


def test_equal_constants_make_their_readers_equal() -> None:
    net = Drawing(x=["batch", 4])
    left, right = (
        net.op("aten.mul", "x", net.constant(4, name=name, value=2.0)) for name in ("a", "b")
    )
    y = net.op("aten.add", left, right)

    assert kinds(rewritten(net, merge_duplicates, y)) == ["mul", "add"]


def test_operators_with_other_attributes_are_not_merged() -> None:
    net = Drawing(x=["batch", 4])
    clamps = [net.op("aten.clamp", "x", min=0.0, max=limit) for limit in (1.0, 2.0)]
    y = net.op("aten.add", *clamps)

    assert kinds(rewritten(net, merge_duplicates, y)) == ["clamp", "clamp", "add"]


def test_dead_operators_and_constants_go() -> None:
    net = Drawing(x=["batch", 4])
    net.op("aten.mul", "x", net.constant(4))
    drawn = net.graph(net.op("aten.relu", "x"))

    graph, weights = drop_dead(*drawn)

    assert kinds(graph) == ["relu"]
    assert not weights
    assert not graph.constants


def test_a_value_read_only_inside_a_branch_is_alive() -> None:
    net = Drawing(x=["batch", 4])
    net.weights |= {"yes": torch.tensor(True), "no": torch.tensor(False)}
    shared = net.op("aten.relu", "x")
    arm = Branch((Operator("neg", "aten.neg", (shared,), ("n",)),), ("n",))
    drawn = net.graph(net.cond("yes", arm, Branch((), (shared,))))

    graph, weights = drop_dead(*drawn)

    assert kinds(graph) == ["relu", "cond"]
    assert set(weights) == {"yes"}
    assert_same_numbers(drawn, (graph, weights))
