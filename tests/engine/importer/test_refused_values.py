"""Values of a request that become addresses: the caller's error, by the name of the input."""

from typing import Any

import numpy as np
import onnx
import pytest
import torch

from braid.core.errors import InvalidRequest
from braid.engine.importer.upload.whole_model import _origins
from braid.engine.ops.whole import WholeModel, whole_model
from tests.models.graphs import parsed

REGIONS = parsed(
    """(float[1, 3, 8, 8] x, float[1, 4] rois, int64[1] images) => (float[1, 3, 2, 2] y) {
      half = Constant<value_float=0.5>()  smaller = Mul(rois, half)
      y = RoiAlign<output_height=2, output_width=2>(x, smaller, images) }""",
    opset=16,
)
"""RoiAlign on halved regions of one image."""


def content(made: onnx.ModelProto) -> torch.Tensor:
    return torch.frombuffer(bytearray(made.SerializeToString()), dtype=torch.uint8)


def run(region: list[float], image: int) -> torch.Tensor:
    attributes: dict[str, Any] = {
        "names": ["x", "rois", "images"],
        "outputs": ["y"],
        "input_shapes": [[1, 3, 8, 8], [1, 4], [1]],
        "shapes": [[1, 3, 2, 2]],
        "dtypes": ["FP32"],
        "origins": _origins(REGIONS, ["x", "rois", "images"]),
    }
    inputs = (
        torch.ones(1, 3, 8, 8),
        torch.tensor([region], dtype=torch.float32),
        torch.tensor([image]),
    )
    return whole_model(content(REGIONS), *inputs, whole=WholeModel(**attributes))[0]


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
    made = parsed(
        """(int64 trips, float[3, 2] table) => (float[n, 2] rows) {
          rows = Loop<body = turn (int64 i, bool go) => (bool on, float[2] row)
            { on = Identity(go)  row = Gather(table, i) }>(trips, "") }""",
        opset=16,
    )
    whole = WholeModel(["trips", "table"], ["rows"], [[], [3, 2]], [[3, 2]], ["FP32"])

    with pytest.raises(InvalidRequest, match=r"values: Gather: indices .* idx=3 must be within"):
        whole_model(content(made), torch.tensor(5), torch.ones(3, 2), whole=whole)


def test_what_is_of_onnxruntimes_own_code_is_left_out() -> None:
    made = parsed("(float[3] x, int64[1] axis) => (float[] y) { y = Unsqueeze(x, axis) }", opset=16)
    whole = WholeModel(["x", "axis"], ["y"], [[3], [1]], [[1, 3]], ["FP32"])

    with pytest.raises(InvalidRequest, match="these values: Unsqueeze: axis 5 is not in"):
        whole_model(content(made), torch.ones(3), torch.tensor([5]), whole=whole)
