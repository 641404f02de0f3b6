"""Sums of multiples in one unit: the same numbers, and nothing that others read is lost."""

import pytest

from braid.core.graph import OpGraph
from braid.engine.passes.body import Weights
from braid.engine.passes.fusion import MAX_TERMS, fuse_weighted_sums
from tests.engine.passes.drawing import drawn, epilogue, fused, kinds

RELU = ", epilogue=[['aten.relu']]"


def summed(text: str) -> tuple[OpGraph, Weights]:
    drawing, outputs = drawn(text, a=(1, 4, 5, 5), b=(1, 4, 5, 5), c=(1, 4, 5, 5))
    return drawing.static(*outputs)


@pytest.mark.parametrize(
    ("text", "terms", "weights"),
    [
        ("add(add(mul(a, 0.25), mul(b, -3.0)), c)", "abc", [0.25, -3.0, 1.0]),
        # the number stands first, and a sum is nested on the left
        ("add(add(b, c), mul(0.25, a))", "bca", [1.0, 1.0, 0.25]),
        ("add(mul(a, 0.25), a)", "aa", [0.25, 1.0]),
    ],
)
@pytest.mark.parametrize("activation", ["", RELU])
def test_products_and_sums_become_one_unit_with_its_activation(
    text: str, terms: str, weights: list[float], activation: str
) -> None:
    (unit,) = fused(fuse_weighted_sums, *summed(f"{text[:-1]}{activation})")).operators

    assert (unit.kind, unit.inputs) == ("braid.weighted_sum", tuple(terms))
    assert unit.attributes["weights"] == weights
    assert epilogue(unit) == (["relu"] if activation else [])


@pytest.mark.parametrize(
    "text",
    [
        "add(add(a, b), c)",  # there is no product
        f"add(mul(a, 0.25{RELU}), b)",
        "add(mul(a, 0.0), b)",
        "add(mul(a, 1e9), b)",
        "add(mul(a, b), c)",
    ],
)
def test_other_sums_stay(text: str) -> None:
    graph, constants = summed(text)

    assert fuse_weighted_sums(graph, constants) == graph


def test_what_others_read_is_not_taken_up() -> None:
    graph = fused(fuse_weighted_sums, *summed("p = mul(a, 0.25); p, add(p, mul(b, 0.7))"))

    assert kinds(graph) == ["mul", "weighted_sum"]


def test_long_sums_become_several_units() -> None:
    total = "mul(a, 0.25)"
    for index in range(1, 2 * MAX_TERMS):
        total = f"add({total}, mul({'abc'[index % 3]}, 0.25))"

    units = fused(fuse_weighted_sums, *summed(total)).operators

    assert {op.kind for op in units} == {"braid.weighted_sum"}
    assert max(len(op.inputs) for op in units) == MAX_TERMS
    assert len(units) == 3
