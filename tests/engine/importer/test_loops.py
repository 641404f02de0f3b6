"""Loops whose number of trips follows from constants, wherever these are computed."""

from __future__ import annotations

from itertools import pairwise

import onnx
import pytest
from onnx import inliner

from braid.engine.importer.upload.loops import MOST_TRIPS, loops_against
from tests.models.bad_onnx import loop
from tests.models.graphs import from_x, own_function

MADE_TRUE = "a = Constant<value_int=3>()  b = Constant<value_int=4>()  on = Less(a, b)"
BY_CONTENT = """zero = Constant<value_float=0.0>()  sum = ReduceSum<keepdims=0>(v)
on = Greater(sum, zero)"""
PRODUCT = "a = Constant<value_int=2048>()  trips = Mul(a, a)"


def nested(outer: int, inside: int) -> onnx.ModelProto:
    inner = loop("many, , v", makes="u")
    return from_x(loop("trips, , x", f"on = Identity(go)  {inner}"), trips=outer, many=inside)


def in_a_function() -> onnx.ModelProto:
    body = f"{PRODUCT}  {loop('trips, , s')}"
    return from_x("y = own.f(x)", functions=own_function("f (s) => (y)", body))


REFUSED = {
    "a product of constants": (from_x(f"{PRODUCT}  {loop('trips, , x')}"), "more than"),
    "a product in a function": (in_a_function(), "more than"),
    "loops in loops": (nested(1 << 11, 1 << 11), "more than"),
    "true handed on": (from_x(loop(", go, x"), go=True), "never ends"),
    "true by constants": (from_x(loop(", go, x", MADE_TRUE), go=True), "never ends"),
    "neither": (from_x(loop(", , x")), "neither count nor condition"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_certainly_runs_too_often_is_refused(name: str) -> None:
    made, reason = REFUSED[name]

    (found,) = loops_against(inliner.inline_local_functions(made))

    assert reason in found


ALLOWED = {
    "few": nested(8, 8),
    "a condition by content": from_x(loop(", go, x", BY_CONTENT), go=True),
    "while with the largest count": from_x(
        loop("most, go, x", BY_CONTENT), go=True, most=(1 << 63) - 1
    ),
    "never begun": from_x(loop(", no, x"), no=False),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_may_end_is_left_to_the_limit_of_a_run(name: str) -> None:
    assert loops_against(ALLOWED[name]) == []


def test_many_loops_count_together() -> None:
    loops = [loop(f"trips, , {one}", makes=other) for one, other in pairwise("xaby")]

    (found,) = loops_against(from_x("  ".join(loops), trips=MOST_TRIPS // 2))

    assert "in all" in found
