"""Resizing, sampling and transforms of ONNX against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.engine.onnx.operands import Node, Random, case, check, const, ints, shape
from tests.engine.onnx.oracle import assert_agrees, node_model

RANDOM = Random(0)
real, positive = RANDOM.real, RANDOM.positive
IMAGE, SIGNAL = real(2, 4, 9, 10), real(2, 4, 13)

COORDINATES = (
    *("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"),
    "tf_half_pixel_for_nn",
)
SCALES = ([1, 1, 2, 2], [1, 1, 0.6, 1.7], [1, 1, 1, 3])


@pytest.mark.parametrize("scales", SCALES, ids=str)
@pytest.mark.parametrize("coordinates", [c for c in COORDINATES if not c.startswith("tf")])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_smooth_resize(mode: str, coordinates: str, scales: list[float]) -> None:
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates}
    model = node_model("Resize", [real(2, 3, 6, 7), None, const(scales)], 13, **attributes)

    assert_agrees(*model, tolerance=1e-4)


@pytest.mark.parametrize("scales", SCALES, ids=str)
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_nearest_resize(rounding: str, coordinates: str, scales: list[float]) -> None:
    attributes: dict[str, Any] = {"nearest_mode": rounding}
    attributes["coordinate_transformation_mode"] = coordinates
    operands = [real(2, 3, 6, 7), None, const(scales)]

    assert_agrees(*node_model("Resize", operands, 13, mode="nearest", **attributes))


@pytest.mark.parametrize(
    "node",
    [
        case("Upsample", 7, IMAGE, scales=[1.0, 1.0, 2.0, 3.0]),
        case("Upsample", 9, IMAGE, const([1, 1, 1.5, 2])),
        case("Upsample", 9, IMAGE, const([1, 1, 2, 2]), mode="linear"),
        case("Resize", 10, IMAGE, const([1, 1, 2, 2])),
        case("Resize", 10, IMAGE, const([1, 1, 2, 2]), mode="linear"),
        case("Resize", 11, IMAGE, const([]), const([]), shape(2, 4, 20, 5), mode="linear"),
        case("Resize", 13, IMAGE, None, None, shape(2, 4, 20, 15)),
        case("Resize", 13, IMAGE, None, np.array([1, 1, 2, 0.5], np.float32)),
        case("Resize", 13, SIGNAL, None, const([1, 1, 2.5]), mode="linear"),
        case("Resize", 13, real(2, 4, 7, 4), None, None, shape(2, 4, 8, 7),
             coordinate_transformation_mode="asymmetric", nearest_mode="round_prefer_ceil"),
    ],
)  # fmt: skip
def test_resize(node: Node) -> None:
    check(*node)


@pytest.mark.parametrize(
    "node",
    [
        case("Col2Im", 18, real(1, 12, 12), shape(4, 5), shape(2, 2)),
        case("Col2Im", 18, real(1, 12, 6), shape(4, 5), shape(2, 3), strides=[2, 2],
             pads=[0, 1, 0, 1]),
        case("CenterCropPad", 18, real(5, 4), shape(3, 7)),
        case("DFT", 17, real(2, 8, 1), axis=1),
        case("DFT", 20, real(2, 8, 2), None, const(ints(1).reshape(()))),
        case("DFT", 17, real(2, 8, 2), const(ints(6).reshape(())), axis=1, inverse=1),
        case("DFT", 17, real(2, 9, 1), axis=1, onesided=1),
        case("STFT", 17, real(2, 40, 1), const(ints(8).reshape(())), const(positive(16))),
    ],
)  # fmt: skip
def test_sampling_and_transforms(node: Node) -> None:
    check(*node)
