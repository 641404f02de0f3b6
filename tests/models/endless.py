"""A model that never ends on some values: a Loop inside a local function, its trips an input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from tests.models.graphs import graph, model, own_function, tensors

FOREVER = np.full((1, 4), 1e15, np.float32)
"""Takes that many trips; ``np.ones`` takes one."""


def endless(path: Path) -> Path:
    """x [n, 4] -> x after as many trips as its first element says."""
    body = graph(
        [
            helper.make_node("Identity", ["going"], ["go_on"]),
            helper.make_node("Sin", ["v"], ["u"]),
        ],
        tensors(TensorProto.INT64, trip=[]) + tensors(TensorProto.BOOL, going=[]) + tensors(v=None),
        tensors(TensorProto.BOOL, go_on=[]) + tensors(u=None),
    )
    turns = helper.make_node("Loop", ["trips", "", "a"], ["b"], body=body, name="loop")
    spin = own_function("Spin", ["a", "trips"], "b", [turns])
    nodes = [
        helper.make_node("Gather", ["x", "zero"], ["row"]),
        helper.make_node("Gather", ["row", "zero"], ["count"]),
        helper.make_node("Abs", ["count"], ["size"]),
        helper.make_node("Cast", ["size"], ["trips"], to=TensorProto.INT64),
        helper.make_node("Spin", ["x", "trips"], ["y"], domain="own"),
    ]
    made = model(nodes, {"zero": np.array(0)}, functions=[spin])
    path.write_bytes(made.SerializeToString())
    return path
