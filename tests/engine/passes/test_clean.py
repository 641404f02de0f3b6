"""What nothing reads goes; what is known in advance is computed once, unless large or failing."""

import dataclasses

import pytest
import torch

from braid.core.graph import Branch, Operator
from braid.engine.passes.clean import drop_dead, drop_no_ops, merge_duplicates
from braid.engine.passes.folding import fold_constants
from tests.engine.passes.drawing import Drawing, assert_same_numbers, kinds, left, rewritten


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("relu(mul(identity(x), 1.0))", ["relu"]),
        ("identity(identity(x))", ["identity"]),  # from input to output
        ("add(x, const(1, 4, value=0.0))", ["add"]),  # it repeats x
    ],
)
def test_no_ops_are_dropped(text: str, kinds: list[str]) -> None:
    assert left(drop_no_ops, text, x=["batch", 1]) == kinds


def test_an_identity_that_is_an_output_hands_its_place_to_its_source() -> None:
    net = Drawing(x=["batch", 4])
    relu = net.op("aten.relu", "x")

    graph = rewritten(net, drop_no_ops, net.op("braid.identity", relu), relu)

    assert graph.outputs == {"y0": relu, "y1": relu}


SAME = "mul(x, const(4, name='{}', value=2.0))"


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("add(relu(x), relu(x))", ["relu", "add"]),
        (f"add({SAME.format('a')}, {SAME.format('b')})", ["mul", "add"]),  # equal constants
        ("add(clamp(x, min=0.0, max=1.0), clamp(x, min=0.0, max=2.0))", ["clamp", "clamp", "add"]),
    ],
)
def test_repeated_operators_run_once(text: str, kinds: list[str]) -> None:
    assert left(merge_duplicates, text, x=["batch", 4]) == kinds


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


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("add(x, neg(relu(const(4))))", ["add"]),
        ("relu(const(4))", ["relu"]),  # an output keeps its operator
    ],
)
def test_what_depends_on_constants_only_is_computed_once(text: str, kinds: list[str]) -> None:
    assert left(fold_constants, text, x=["batch", 4]) == kinds


def test_a_result_much_larger_than_its_operands_is_not_folded() -> None:
    net = Drawing(x=["batch", 4])
    huge = net.op("braid.expand", net.constant(1, 4), shape=[1 << 36, 4])
    graph, weights = fold_constants(*net.graph(net.op("aten.add", "x", huge)))

    assert kinds(graph) == ["expand", "add"]
    assert set(weights) == {"c0"}


def test_constant_of_shape_with_a_terabyte_is_not_folded() -> None:
    net = Drawing(x=["batch", 4])
    huge = net.op("braid.constant_of_shape", shape=[1 << 38], value=1.0, dtype="FP32")
    graph, _ = fold_constants(*net.graph(net.op("aten.relu", "x"), net.op("aten.relu", huge)))

    assert "constant_of_shape" in kinds(graph)


def test_known_host_operands_become_attributes() -> None:
    net = Drawing(x=["batch", 4])
    net.weights["target"] = torch.tensor([0, 2, 2])
    value = net.op("braid.reshape", "x")
    net.operators[-1] = dataclasses.replace(net.operators[-1], host={"shape": "target"})
    drawn = net.graph(value)

    graph, weights = fold_constants(*drawn)

    assert graph.operators[0].attributes == {"shape": [0, 2, 2]}
    assert not graph.operators[0].host
    assert_same_numbers(drawn, (graph, weights))


def test_an_operator_that_fails_is_left_for_run_time() -> None:
    net = Drawing(x=["batch", 4])
    net.operators.append(Operator("bad", "aten.add", (net.constant(3), net.constant(2)), ("sum",)))
    graph, _ = fold_constants(*net.graph(net.op("aten.add", "x", "sum")))

    assert kinds(graph) == ["add", "add"]
