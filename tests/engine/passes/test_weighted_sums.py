"""Sums of multiples in one unit: the same numbers, and nothing that others read is lost."""

from __future__ import annotations

import pytest
import torch

from braid.core.graph import Literal, Operator, OpGraph
from braid.core.tensor import TensorType
from braid.engine.passes.fusion import MAX_TERMS, fuse_weighted_sums
from braid.engine.passes.specialise import interpret

SPEC = TensorType("FP32", (1, 4, 5, 5))
ONE = TensorType("FP32", ())
RELU: list[Literal] = [["aten.relu"]]
NUMBERS = {"k": 0.25, "l": -3.0, "m": 0.7, "nought": 0.0, "large": 1e9}


def graph_of(*operators: Operator, outputs: tuple[str, ...] = ("y",)) -> OpGraph:
    made = [name for op in operators for name in op.outputs]
    graph = OpGraph(
        name="drawn",
        inputs=dict.fromkeys(("a", "b", "c"), SPEC),
        outputs={name: name for name in outputs},
        constants=dict.fromkeys(NUMBERS, ONE),
        operators=operators,
        specs=dict.fromkeys(made, SPEC),
    )
    graph.verify()
    return graph


def mul(name: str, data: str, number: str, **more: Literal) -> Operator:
    return Operator(name, "aten.mul", (data, number), (name,), more)


def add(name: str, left: str, right: str, **more: Literal) -> Operator:
    return Operator(name, "aten.add", (left, right), (name,), more)


def fused(graph: OpGraph) -> OpGraph:
    """Graph after the pass, which gives the same numbers."""
    torch.manual_seed(0)
    constants = {name: torch.tensor(number) for name, number in NUMBERS.items()}
    inputs = {name: torch.randn(1, 4, 5, 5) for name in graph.inputs}
    result = fuse_weighted_sums(graph, constants)
    result.verify()
    got = interpret(result, constants, inputs)
    for name, expected in interpret(graph, constants, inputs).items():
        torch.testing.assert_close(got[name], expected)
    return result


def test_products_and_sums_become_one_unit_with_its_activation() -> None:
    products = mul("p", "a", "k"), mul("q", "b", "l")
    graph = graph_of(*products, add("s", "p", "q"), add("y", "s", "c", epilogue=RELU))

    (unit,) = fused(graph).operators

    assert (unit.name, unit.kind, unit.inputs) == ("y", "braid.weighted_sum", ("a", "b", "c"))
    assert unit.attributes == {"weights": [0.25, -3.0, 1.0], "epilogue": RELU}


def test_the_number_may_stand_first_and_a_sum_be_nested_on_either_side() -> None:
    graph = graph_of(
        Operator("p", "aten.mul", ("k", "a"), ("p",)), add("s", "b", "c"), add("y", "s", "p")
    )

    (unit,) = fused(graph).operators

    assert unit.inputs == ("b", "c", "a")


def test_the_same_value_may_come_twice() -> None:
    graph = graph_of(mul("p", "a", "k"), add("y", "p", "a"))

    (unit,) = fused(graph).operators

    assert unit.inputs == ("a", "a")


@pytest.mark.parametrize(
    "operators",
    [
        (add("s", "a", "b"), add("y", "s", "c")),  # there is no product
        (mul("p", "a", "k", epilogue=RELU), add("y", "p", "b")),
        (mul("p", "a", "nought"), add("y", "p", "b")),
        (mul("p", "a", "large"), add("y", "p", "b")),
        (mul("p", "a", "b"), add("y", "p", "c")),
    ],
)
def test_other_sums_stay(operators: tuple[Operator, ...]) -> None:
    graph = graph_of(*operators)

    assert fused(graph) == graph


def test_what_others_read_is_not_taken_up() -> None:
    graph = graph_of(mul("p", "a", "k"), mul("q", "b", "m"), add("y", "p", "q"), outputs=("p", "y"))

    assert [op.name for op in fused(graph).operators] == ["p", "y"]


def test_long_sums_become_several_units() -> None:
    count = 2 * MAX_TERMS
    products = [mul(f"p{index}", "abc"[index % 3], "k") for index in range(count)]
    sums = [
        add(f"s{index}", f"s{index - 1}" if index > 1 else "p0", f"p{index}")
        for index in range(1, count)
    ]

    units = fused(graph_of(*products, *sums, outputs=(f"s{count - 1}",))).operators

    assert {op.kind for op in units} == {"braid.weighted_sum"}
    assert max(len(op.inputs) for op in units) == MAX_TERMS
    assert len(units) == 3
