"""Tensor contents in other forms than raw bytes: typed ones in requests, classes in answers.

Raw: little-endian elements in row-major order; for BYTES each element is preceded by its length
in four bytes. FP16 and BF16 have no typed form, they are always sent raw.

Classification: FP32 [rows, classes] ──largest k──> BYTES [rows, k], each "value:class".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from braid.core.errors import InvalidRequest, InvalidTensor
from braid.core.strings import length_prefixed
from braid.core.tensor import BYTES
from braid.server.inference.requests import OutputTensor

TYPED: Mapping[str, tuple[str, str]] = {
    "BOOL": ("bool_contents", "?"),
    "INT8": ("int_contents", "i1"),
    "INT16": ("int_contents", "<i2"),
    "INT32": ("int_contents", "<i4"),
    "INT64": ("int64_contents", "<i8"),
    "UINT8": ("uint_contents", "u1"),
    "UINT16": ("uint_contents", "<u2"),
    "UINT32": ("uint_contents", "<u4"),
    "UINT64": ("uint64_contents", "<u8"),
    "FP32": ("fp32_contents", "<f4"),
    "FP64": ("fp64_contents", "<f8"),
}
"""Datatype -> field of InferTensorContents, element type."""

_WIDE: Mapping[str, str] = {
    "bool_contents": "?",
    "int_contents": "<i4",
    "int64_contents": "<i8",
    "uint_contents": "<u4",
    "uint64_contents": "<u8",
    "fp32_contents": "<f4",
    "fp64_contents": "<f8",
}
"""Field -> type of its elements on the wire."""

_BYTES_FIELD = "bytes_contents"


DTYPES = {
    **{datatype: np.dtype(element) for datatype, (_, element) in TYPED.items()},
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


def raw_bytes(name: str, datatype: str, contents: Any) -> bytes:
    """Return the raw form of an ``InferTensorContents``.

    Args:
        name: of the input, for messages.
        datatype: as the request says.
        contents: the message.

    Raises:
        InvalidTensor: the datatype has no typed form, another field is filled, or a value is out
            of the datatype's range.
    """
    filled = [field.name for field, _ in contents.ListFields()]
    wanted = _BYTES_FIELD if datatype == BYTES else TYPED.get(datatype, ("",))[0]
    if not wanted:
        raise InvalidTensor(
            f"input {name!r} of datatype {datatype!r} has no typed contents; "
            "send it in raw_input_contents"
        )
    if filled not in ([], [wanted]):
        raise InvalidTensor(
            f"input {name!r} of datatype {datatype} has {', '.join(filled)}; "
            f"its elements belong in {wanted}"
        )
    values = getattr(contents, wanted)
    if datatype == BYTES:
        return length_prefixed(values)
    array = np.array(values, _WIDE[wanted])
    dtype = np.dtype(TYPED[datatype][1])
    if dtype.kind in "iu" and array.size:
        limits = np.iinfo(dtype)
        if array.min() < limits.min or array.max() > limits.max:
            raise InvalidTensor(f"input {name!r} has a value outside the range of {datatype}")
    return array.astype(dtype).tobytes()


def classify(name: str, tensor: OutputTensor, count: int, batched: bool) -> OutputTensor:
    """Return the ``count`` largest values of each row, largest first; ties by class id.

    Raises:
        InvalidRequest: the output has no classes.
    """
    rows = tensor.shape[0] if batched and tensor.shape else 1
    classes = math.prod(tensor.shape) // rows
    if tensor.dtype in ("BOOL", BYTES) or not tensor.shape or classes < 1:
        raise InvalidRequest(
            f"output {name!r} is {tensor.dtype}{list(tensor.shape)}: nothing to classify"
        )
    values = np.frombuffer(tensor.data, DTYPES[tensor.dtype]).reshape(rows, classes)
    kept = min(count, classes)
    order = np.argsort(-values.astype(np.float64), axis=1, kind="stable")[:, :kept]
    elements = [
        f"{float(values[row, index]):f}:{index}".encode()
        for row in range(rows)
        for index in order[row]
    ]
    shape = (rows, kept) if batched else (kept,)
    return OutputTensor(BYTES, shape, length_prefixed(elements))
