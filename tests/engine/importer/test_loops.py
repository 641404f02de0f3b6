"""Loops whose number of trips follows from constants, wherever these are computed."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
import pytest
from onnx import helper, inliner

from braid.engine.importer.upload.loops import MOST_TRIPS, loops_against
from tests.models.bad_onnx import KEEPS, loop_body
from tests.models.graphs import model, own_function

MADE_TRUE = [
    helper.make_node("Constant", [], ["three"], value_int=3),
    helper.make_node("Constant", [], ["four"], value_int=4),
    helper.make_node("Less", ["three", "four"], ["on"]),
]
BY_CONTENT = [
    helper.make_node("Constant", [], ["zero"], value_float=0.0),
    helper.make_node("ReduceSum", ["v"], ["sum"], keepdims=0),
    helper.make_node("Greater", ["sum", "zero"], ["on"]),
]
PRODUCT = [
    helper.make_node("Constant", [], ["a"], value_int=1 << 11),
    helper.make_node("Mul", ["a", "a"], ["trips"]),
]


def loop(count: str, go: str, inner: onnx.GraphProto, source: str = "x") -> onnx.NodeProto:
    return helper.make_node("Loop", [count, go, source], ["y"], body=inner, name="loop")


def nested(outer: int, inside: int) -> onnx.ModelProto:
    inner = helper.make_node("Loop", ["many", "", "v"], ["u"], body=loop_body(KEEPS))
    return model(
        [loop("trips", "", loop_body(KEEPS, [inner]))],
        {"trips": np.array(outer), "many": np.array(inside)},
    )


def in_a_function() -> onnx.ModelProto:
    inner = loop("trips", "", loop_body(KEEPS), "s")
    function = own_function("f", "s", "y", [*PRODUCT, inner])
    return model([helper.make_node("f", ["x"], ["y"], domain="own")], functions=[function])


GO = {"go": np.array(True)}
REFUSED = {
    "a product of constants": (model([*PRODUCT, loop("trips", "", loop_body(KEEPS))]), "more than"),
    "a product in a function": (in_a_function(), "more than"),
    "loops in loops": (nested(1 << 11, 1 << 11), "more than"),
    "true handed on": (model([loop("", "go", loop_body(KEEPS))], GO), "never ends"),
    "true by constants": (model([loop("", "go", loop_body(MADE_TRUE))], GO), "never ends"),
    "neither": (model([loop("", "", loop_body(KEEPS))]), "neither count nor condition"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_certainly_runs_too_often_is_refused(name: str) -> None:
    made, reason = REFUSED[name]

    (found,) = loops_against(inliner.inline_local_functions(made))

    assert reason in found


ALLOWED = {
    "few": nested(8, 8),
    "a condition by content": model([loop("", "go", loop_body(BY_CONTENT))], GO),
    "while with the largest count": model(
        [loop("most", "go", loop_body(BY_CONTENT))], {**GO, "most": np.array((1 << 63) - 1)}
    ),
    "never begun": model([loop("", "no", loop_body(KEEPS))], {"no": np.array(False)}),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_may_end_is_left_to_the_limit_of_a_run(name: str) -> None:
    assert loops_against(ALLOWED[name]) == []


def test_many_loops_count_together() -> None:
    values = ["x", "a", "b", "y"]
    nodes = [
        helper.make_node("Loop", ["trips", "", one], [other], body=loop_body(KEEPS))
        for one, other in pairwise(values)
    ]

    (found,) = loops_against(model(nodes, {"trips": np.array(MOST_TRIPS // 2)}))

    assert "in all" in found
