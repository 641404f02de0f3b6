"""A classifier in the form of Triton's quick start, and a detector with its file's metadata."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CLASSES, SIZE = 6, 8
METADATA = {
    "description": 'a "detector\'s" file',
    "stride": "32",
    "task": "detect",
    "batch": "1",
    "imgsz": "[8, 8]",
    "names": "{0: 'person', 1: 'fire hydrant'}",
}


def _weights() -> list[onnx.TensorProto]:
    weights = np.random.default_rng(3).standard_normal((CLASSES, 3, 1, 1)).astype(np.float32)
    return [numpy_helper.from_array(weights, "w")]


def classifier(path: Path, batch: int | str = 1) -> Path:
    """Make densenet_onnx in small: ``data_0`` [1, 3, 8, 8] to ``fc6_1`` [1, 6, 1, 1]."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["data_0"], ["pooled"]),
        helper.make_node("Conv", ["pooled", "w"], ["fc6_1"]),
    ]
    graph = helper.make_graph(
        nodes,
        "densenet",
        [helper.make_tensor_value_info("data_0", TensorProto.FLOAT, [batch, 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("fc6_1", TensorProto.FLOAT, [batch, CLASSES, 1, 1])],
        _weights(),
    )
    onnx.save(_model(graph), path)
    return path


def detector(path: Path) -> Path:
    """Make a detector: ``images`` to ``output1`` and ``output0``, in this order, and metadata."""
    nodes = [
        helper.make_node("Conv", ["images", "w"], ["output0"]),
        helper.make_node("Relu", ["output0"], ["output1"]),
    ]
    shape = [1, CLASSES, SIZE, SIZE]
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, SIZE, SIZE])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name in ("output1", "output0")
        ],
        _weights(),
    )
    model = _model(graph)
    helper.set_model_props(model, METADATA)
    onnx.save(model, path)
    return path


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
