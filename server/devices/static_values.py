"""The content of *static inputs*: small integer inputs that decide shapes or branches.

report (nested lists) ─┐
                       ├─> raw bytes (part of a shape class) ─> JSON for the worker
request (raw bytes) ───┘
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from braid.core.tensor import TensorSpec

StaticValues = Mapping[str, Mapping[str, Any]]
"""Input name -> {"dtype", "shape", "data": flat list}, as messages to the worker carry it."""

StaticBytes = tuple[tuple[str, bytes], ...]
"""Input name and raw little-endian content, in the model's order."""

_TYPES = {
    "BOOL": "?",
    "UINT8": "u1",
    "INT8": "i1",
    "UINT16": "<u2",
    "INT16": "<i2",
    "UINT32": "<u4",
    "INT32": "<i4",
    "UINT64": "<u8",
    "INT64": "<i8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}


def static_bytes(values: Mapping[str, Any], inputs: Mapping[str, TensorSpec]) -> StaticBytes:
    """Raw content from the nested lists of an import report."""
    return tuple(
        (name, np.asarray(values[name], dtype=_TYPES[inputs[name].dtype]).tobytes())
        for name in inputs
        if name in values
    )


def static_message(values: StaticBytes, inputs: Mapping[str, TensorSpec]) -> StaticValues:
    """What the worker is told; ``inputs`` give dtype and static shape."""
    return {
        name: {
            "dtype": inputs[name].dtype,
            "shape": list(inputs[name].shape),
            "data": np.frombuffer(content, _TYPES[inputs[name].dtype]).tolist(),
        }
        for name, content in values
    }
