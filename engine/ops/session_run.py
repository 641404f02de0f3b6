"""Sessions of ONNX Runtime, and runs on arrays.

On x86-64 without VNNI, ONNX Runtime adds pairs of products of 8 bits in 16 and saturates: results
were off by a quarter. It is told to compute exactly, which takes constant weights. BF16, which its
arrays cannot be, goes in and out by address.
"""

import ctypes
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

_BF16 = 16  # of ONNX's TensorProto
_EXACT_SUMS = "session.x64quantprecision"


def new_session(
    model: str | Path | bytes, options: Any, provider: Any = "CPUExecutionProvider"
) -> Any:
    """``model``: path or content; ``options`` may be changed, so that 8-bit sums are exact."""
    from onnxruntime import InferenceSession

    options.add_session_config_entry(_EXACT_SUMS, "1")
    try:
        return InferenceSession(model, options, providers=[provider])
    except Exception as error:  # its exceptions share no base but this
        if "NOT_IMPLEMENTED" not in str(error):
            raise
        # It turns weights to uint8, also those of layers that lack a kernel then (Gemm on int8),
        # which are exact without.
        options.add_session_config_entry(_EXACT_SUMS, "0")
        return InferenceSession(model, options, providers=[provider])


def run_session(
    session: Any, names: Sequence[str], feeds: Mapping[str, Any], options: Any = None
) -> list[Any]:
    """Return the outputs of these names; BF16 in the type of ml_dtypes, as in ``feeds``."""
    ports = (*session.get_inputs(), *session.get_outputs())
    if all(port.type != "tensor(bfloat16)" for port in ports):
        results: list[Any] = session.run(list(names), feeds, options)
        return results
    from onnxruntime import OrtValue

    bound = session.io_binding()
    for name, array in feeds.items():
        if array.dtype == ml_dtypes.bfloat16:
            bits = np.ascontiguousarray(array).view(np.uint16)
            bound.bind_ortvalue_input(
                name, OrtValue.ortvalue_from_numpy_with_onnx_type(bits, _BF16)
            )
        else:
            bound.bind_cpu_input(name, array)
    for name in names:
        bound.bind_output(name, "cpu")
    session.run_with_iobinding(bound, options)
    return [_array(value) for value in bound.get_outputs()]


def _array(value: Any) -> Any:
    if value.element_type() != _BF16:
        return value.numpy()
    shape = value.shape()
    memory = (ctypes.c_uint16 * prod(shape)).from_address(value.data_ptr())
    return np.array(memory, np.uint16).reshape(shape).view(ml_dtypes.bfloat16)
