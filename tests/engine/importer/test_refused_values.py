"""Values of a request that become addresses: the caller's error, by the name of the input."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from braid.core.errors import InvalidRequest
from braid.engine.importer.upload.whole_model import _origins
from braid.engine.ops.whole import WholeModel, whole_model


def regions() -> onnx.ModelProto:
    """RoiAlign on halved regions of one image."""
    nodes = [
        helper.make_node("Constant", [], ["half"], value_float=0.5),
        helper.make_node("Mul", ["rois", "half"], ["smaller"]),
        helper.make_node(
            "RoiAlign", ["x", "smaller", "images"], ["y"], output_height=2, output_width=2
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "regions",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8]),
            helper.make_tensor_value_info("rois", TensorProto.FLOAT, [1, 4]),
            helper.make_tensor_value_info("images", TensorProto.INT64, [1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 2, 2])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)


MODEL = torch.frombuffer(bytearray(regions().SerializeToString()), dtype=torch.uint8)


def run(region: list[float], image: int) -> torch.Tensor:
    attributes: dict[str, Any] = {
        "names": ["x", "rois", "images"],
        "outputs": ["y"],
        "input_shapes": [[1, 3, 8, 8], [1, 4], [1]],
        "shapes": [[1, 3, 2, 2]],
        "dtypes": ["FP32"],
        "origins": _origins(regions(), ["x", "rois", "images"]),
    }
    inputs = (
        torch.ones(1, 3, 8, 8),
        torch.tensor([region], dtype=torch.float32),
        torch.tensor([image]),
    )
    return whole_model(MODEL, *inputs, whole=WholeModel(**attributes))[0]


def test_a_region_inside_the_image_is_pooled() -> None:
    np.testing.assert_array_equal(run([0, 0, 8, 8], 0), np.ones((1, 3, 2, 2)))


@pytest.mark.parametrize(
    ("region", "image"),
    [
        ([float("nan")] * 4, 0),
        ([0, 0, float("inf"), 4], 0),
        ([-float("inf"), 0, 4, 4], 0),
        ([0, 0, 4, 4], 1),
        ([0, 0, 4, 4], -1),
        ([0, 0, 4, 4], 1 << 40),
    ],
)
def test_a_region_that_is_none_names_the_inputs(region: list[float], image: int) -> None:
    with pytest.raises(InvalidRequest, match=r"RoiAlign: .*from input 'images' or 'rois'"):
        run(region, image)


def test_an_operator_in_a_loop_is_the_one_that_is_named() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Gather", ["table", "i"], ["row"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("row", TensorProto.FLOAT, [2]),
        ],
    )
    made = helper.make_model(
        helper.make_graph(
            [helper.make_node("Loop", ["trips", ""], ["rows"], body=body)],
            "loop",
            [
                helper.make_tensor_value_info("trips", TensorProto.INT64, []),
                helper.make_tensor_value_info("table", TensorProto.FLOAT, [3, 2]),
            ],
            [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["n", 2])],
        ),
        opset_imports=[helper.make_opsetid("", 16)],
        ir_version=8,
    )
    whole = WholeModel(["trips", "table"], ["rows"], [[], [3, 2]], [[3, 2]], ["FP32"])
    data = torch.frombuffer(bytearray(made.SerializeToString()), dtype=torch.uint8)

    with pytest.raises(InvalidRequest, match=r"values: Gather: indices .* idx=3 must be within"):
        whole_model(data, torch.tensor(5), torch.ones(3, 2), whole=whole)


def test_what_is_of_onnxruntimes_own_code_is_left_out() -> None:
    axis = helper.make_node("Unsqueeze", ["x", "axis"], ["y"])
    made = helper.make_model(
        helper.make_graph(
            [axis],
            "axis",
            [
                helper.make_tensor_value_info("x", TensorProto.FLOAT, [3]),
                helper.make_tensor_value_info("axis", TensorProto.INT64, [1]),
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        ),
        opset_imports=[helper.make_opsetid("", 16)],
        ir_version=8,
    )
    whole = WholeModel(["x", "axis"], ["y"], [[3], [1]], [[1, 3]], ["FP32"])
    data = torch.frombuffer(bytearray(made.SerializeToString()), dtype=torch.uint8)

    with pytest.raises(InvalidRequest, match="these values: Unsqueeze: axis 5 is not in"):
        whole_model(data, torch.ones(3), torch.tensor([5]), whole=whole)
