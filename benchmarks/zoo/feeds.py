"""Inputs of exported files as arrays of numpy, and how far outputs are from each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

Arrays = dict[str, NDArray[np.generic]]

FP32 = "fp32"
TYPES: Mapping[str, DTypeLike] = {
    FP32: np.float32,
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
}


def feeds_of(onnx: Path, rows: int, type_: str = FP32) -> Arrays:
    """Return inputs of the first rows for an exported file, floats in one of ``TYPES``."""
    with np.load(onnx.with_suffix(".npz")) as arrays:
        feeds = {name: arrays[name][:rows] for name in arrays.files}
    return {
        name: array.astype(TYPES[type_]) if array.dtype == np.float32 else array
        for name, array in feeds.items()
    }


def relative_error(answer: NDArray[np.generic], right: NDArray[np.generic]) -> float:
    """Return the largest difference, relative to the largest element; infinite for other shapes."""
    if answer.shape != right.shape:
        return float("inf")
    if not right.size:
        return 0.0
    ours, theirs = answer.astype(np.float64), right.astype(np.float64)
    return float(np.abs(ours - theirs).max() / max(float(np.abs(theirs).max()), 1e-12))
