"""A classifier in the form of Triton's quick start, and a detector with its file's metadata."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from tests.models.graphs import parsed

CLASSES, SIZE = 6, 8
METADATA = {
    "description": 'a "detector\'s" file',
    "stride": "32",
    "task": "detect",
    "batch": "1",
    "imgsz": "[8, 8]",
    "names": "{0: 'person', 1: 'fire hydrant'}",
}


def _written(path: Path, text: str, metadata: Mapping[str, str]) -> Path:
    weights = np.random.default_rng(3).standard_normal((CLASSES, 3, 1, 1)).astype(np.float32)
    model = parsed(text, {"w": weights})
    helper.set_model_props(model, dict(metadata))
    onnx.save(model, path)
    return path


def classifier(path: Path, batch: int | str = 1) -> Path:
    """Make densenet_onnx in small: ``data_0`` [1, 3, 8, 8] to ``fc6_1`` [1, 6, 1, 1]."""
    text = f"""(float[{batch}, 3, {SIZE}, {SIZE}] data_0) => (float[{batch}, {CLASSES}, 1, 1] fc6_1)
    {{ pooled = GlobalAveragePool(data_0)  fc6_1 = Conv(pooled, w) }}"""
    return _written(path, text, {})


def detector(path: Path) -> Path:
    """Make a detector: ``images`` to ``output1`` and ``output0``, in this order, and metadata."""
    shape = f"[1, {CLASSES}, {SIZE}, {SIZE}]"
    text = f"""(float[1, 3, {SIZE}, {SIZE}] images) => (float{shape} output1, float{shape} output0)
    {{ output0 = Conv(images, w)  output1 = Relu(output0) }}"""
    return _written(path, text, METADATA)
