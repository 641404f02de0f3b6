"""The classification extension: the largest values of an output with their class ids.

FP32 [rows, classes] ──top k──> BYTES [rows, k], each "value:class"
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from braid.core.errors import InvalidRequest
from braid.server.inference.slot_rows import OutputTensor
from braid.server.servicers.oip.tensors.contents import TYPED, length_prefixed

_DTYPES = {
    **{datatype: np.dtype(element) for datatype, (_, element) in TYPED.items()},
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


def classify(name: str, tensor: OutputTensor, count: int, batched: bool) -> OutputTensor:
    """The ``count`` largest values of each row, largest first; ties by class id.

    Raises:
        InvalidRequest: the output has no classes.
    """
    rows = tensor.shape[0] if batched and tensor.shape else 1
    classes = math.prod(tensor.shape) // rows
    if tensor.dtype == "BOOL" or not tensor.shape or classes < 1:
        raise InvalidRequest(
            f"output {name!r} is {tensor.dtype}{list(tensor.shape)}: nothing to classify"
        )
    values = np.frombuffer(tensor.data, _DTYPES[tensor.dtype]).reshape(rows, classes)
    kept = min(count, classes)
    order = np.argsort(-values.astype(np.float64), axis=1, kind="stable")[:, :kept]
    elements = [
        f"{float(values[row, index]):f}:{index}".encode()
        for row in range(rows)
        for index in order[row]
    ]
    shape = (rows, kept) if batched else (kept,)
    return OutputTensor("BYTES", shape, length_prefixed(elements))
