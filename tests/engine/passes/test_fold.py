"""What is known in advance is computed once, unless it is large or fails."""

import dataclasses

import pytest
import torch

from braid.core.graph import Operator
from braid.engine.passes.folding import fold_constants
from tests.engine.passes.drawing import Drawing, assert_same_numbers, kinds, left


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
