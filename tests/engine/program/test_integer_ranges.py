"""Ranges by kind against every combination of small numbers, and the widest inputs that fit."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from braid.core.errors import PreconditionFailed
from braid.engine.program.integer_ranges import (
    BINARY,
    UNARY,
    Range,
    Step,
    constant,
    of_operand,
    summed,
    truncated,
    widest_inputs,
)

ENDS = [(low, high) for low in range(-3, 4) for high in range(low, 4)]
ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "Add": lambda x, y: x + y,
    "Subtract": lambda x, y: x - y,
    "Multiply": lambda x, y: x * y,
    "Maximum": max,
    "Minimum": min,
}
INT32 = -(1 << 31), (1 << 31) - 1


def numbers(found: Range) -> range:
    return range(int(found[0]), int(found[1]) + 1)


@pytest.mark.parametrize("kind", BINARY)
def test_results_of_two_operands_lie_between_those_of_their_ends(kind: str) -> None:
    for a, b in itertools.product(ENDS, ENDS):
        results = [ARITHMETIC[kind](x, y) for x in numbers(a) for y in numbers(b)]
        assert BINARY[kind](a, b) == (min(results), max(results)), (a, b)


def test_results_of_one_operand_are_covered() -> None:
    for found in ENDS:
        for kind, function in (("Abs", abs), ("Negative", lambda x: -x), ("Sign", np.sign)):
            results = [function(x) for x in numbers(found)]
            low, high = UNARY[kind](found)
            assert low <= min(results) <= max(results) <= high
    assert UNARY["Abs"]((-3, 2)) == (0, 3)
    assert truncated((-1.5, 2.7)) == (-1, 2)


def test_running_sums_are_covered() -> None:
    for found in ENDS:
        sums = [
            sum(terms)
            for count in (1, 2, 3)
            for terms in itertools.product(numbers(found), repeat=count)
        ]
        assert summed(3)(found) == (min(sums), max(sums))


def lookup(value: str, extent: int) -> Step:
    return Step(
        "Gather", ("table", value), ("rows",), constant((-1.0, 1.0)), (0,),
        {}, {value: (-extent, extent - 1)},
    )  # fmt: skip


def added(value: str, result: str, number: int) -> Step:
    return Step(
        "Add", (value,), (result,), of_operand(lambda r: (r[0] + number, r[1] + number)), (0,),
        {value: INT32, result: INT32}, {},
    )  # fmt: skip


def cumulative(value: str, result: str, extent: int) -> Step:
    return Step(
        "CumSum", (value,), (result,), of_operand(summed(extent)), (0,), {result: INT32}, {}
    )


def test_an_input_that_is_an_index_is_held_to_the_table() -> None:
    found = widest_inputs([lookup("ids", 1000)], {"ids": INT32}, frozenset())

    assert found == {"ids": (-1000, 999)}


def test_an_index_behind_arithmetic_leaves_the_input_all_that_the_table_has() -> None:
    steps = [added("ids", "places", 2), lookup("places", 514)]

    assert widest_inputs(steps, {"ids": INT32}, frozenset()) == {"ids": (-516, 511)}


def test_a_mask_is_narrowed_until_its_sum_fits() -> None:
    steps = [cumulative("mask", "counted", 128), lookup("counted", 514)]

    ((low, high),) = widest_inputs(steps, {"mask": INT32}, frozenset()).values()

    assert low <= 0 < 1 <= high
    assert 128 * low >= -514
    assert 128 * high <= 513


def test_a_sum_of_indices_that_leaves_32_bits_is_refused_with_it() -> None:
    steps = [lookup("ids", 1000), cumulative("ids", "hash", 1 << 22)]

    with pytest.raises(PreconditionFailed, match=rf"one may be {999 << 22}, made of input 'ids'"):
        widest_inputs(steps, {"ids": INT32}, frozenset())


def test_what_callers_get_as_integers_is_not_narrowed() -> None:
    steps = [added("x", "y", 1)]

    assert widest_inputs(steps, {"x": INT32}, frozenset()) == {"x": (-(1 << 31), (1 << 31) - 2)}
    with pytest.raises(PreconditionFailed, match="2147483648"):
        widest_inputs(steps, {"x": INT32}, frozenset({"y"}))
