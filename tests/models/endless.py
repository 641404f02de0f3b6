"""A model that never ends on some values: a Loop inside a local function, its trips an input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FOREVER = np.full((1, 4), 1e15, np.float32)
"""Takes that many trips; ``np.ones`` takes one."""


def endless(path: Path) -> Path:
    """x [n, 4] -> x after as many trips as its first element says."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["go_on"]),
            helper.make_node("Sin", ["v"], ["u"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("trip", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("u", TensorProto.FLOAT, None),
        ],
    )
    spin = helper.make_function(
        "own",
        "Spin",
        ["a", "trips"],
        ["b"],
        [helper.make_node("Loop", ["trips", "", "a"], ["b"], body=body, name="loop")],
        [helper.make_opsetid("", 17)],
    )
    nodes = [
        helper.make_node("Gather", ["x", "zero"], ["row"]),
        helper.make_node("Gather", ["row", "zero"], ["count"]),
        helper.make_node("Abs", ["count"], ["size"]),
        helper.make_node("Cast", ["size"], ["trips"], to=TensorProto.INT64),
        helper.make_node("Spin", ["x", "trips"], ["y"], domain="own"),
    ]
    graph = helper.make_graph(
        nodes,
        "endless",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array(0), "zero")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    model.functions.append(spin)
    path.write_bytes(model.SerializeToString())
    return path
