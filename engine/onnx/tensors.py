"""Tensors and specs of an ONNX file as torch tensors and tensor specs, checked."""

import math
from collections.abc import Mapping

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from braid.core.errors import ModelImportError
from braid.core.tensor import ARRAY_NAMES, BYTES, DTYPE_BYTES, Dim, TensorType
from braid.engine.onnx.builder import UnsupportedUse
from braid.engine.ops.dtypes import torch_dtype

DTYPES: Mapping[int, str] = {
    helper.np_dtype_to_tensor_dtype(np.dtype(in_numpy)): name
    for name, in_numpy in ARRAY_NAMES.items()
}


def dtype_name(data_type: int) -> str:
    """OIP name of an ONNX element type; ``UnsupportedUse`` if Braid has no such type."""
    try:
        return DTYPES[data_type]
    except KeyError:
        names = TensorProto.DataType
        is_known = data_type in names.values()
        label = names.Name(data_type) if is_known else str(data_type)
        raise UnsupportedUse(f"element type {label}") from None


def to_tensor(proto: TensorProto) -> torch.Tensor:
    """Raises ``UnsupportedUse`` for its type, ``ModelImportError`` unless data fills the shape."""
    label = f"tensor {proto.name!r}"
    if proto.data_location == TensorProto.EXTERNAL or proto.external_data:
        raise ModelImportError(
            f"{label} keeps its data in another file; save the model as one file "
            "(onnx.save_model(..., save_as_external_data=False))"
        )
    if proto.HasField("segment"):
        raise ModelImportError(f"{label} is stored in segments")
    dtype = dtype_name(proto.data_type)
    shape = tuple(proto.dims)
    if any(extent < 0 for extent in shape):
        raise ModelImportError(f"{label} has a negative extent: {list(shape)}")
    elements = math.prod(shape)
    if proto.HasField("raw_data") and len(proto.raw_data) != elements * DTYPE_BYTES[dtype]:
        raise ModelImportError(
            f"{label} of shape {list(shape)} needs {elements * DTYPE_BYTES[dtype]} bytes, "
            f"the file has {len(proto.raw_data)}"
        )
    if elements == 0:
        return torch.empty(shape, dtype=torch_dtype(dtype))
    try:
        array = numpy_helper.to_array(proto)
        if dtype == "BF16":
            bits = np.ascontiguousarray(array).view(np.int16).copy()
            return torch.from_numpy(bits).view(torch.bfloat16).reshape(shape)
        return torch.from_numpy(np.array(array, order="C")).reshape(shape)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ModelImportError(f"{label} does not hold {elements} elements: {error}") from error


def input_spec(info: onnx.ValueInfoProto, *, or_strings: bool = False) -> TensorType:
    """Return the spec of a model input; each open extent gets a symbol.

    A name the model gives is kept; ``?`` and extents without a name get one of their own. With
    ``or_strings`` it may be of strings, which no operator of ours takes. Raises
    ``UnsupportedUse`` for its type, ``ModelImportError`` without a shape.
    """
    if not info.type.HasField("tensor_type"):
        raise UnsupportedUse(f"input {info.name!r} is not a tensor")
    tensor = info.type.tensor_type
    if not tensor.HasField("shape"):
        raise ModelImportError(
            f"input {info.name!r} does not declare a shape; register it with one that it takes: "
            f"--input-shape {info.name}=1,4 (four for its own extent; requests may differ)"
        )
    dims: list[Dim] = []
    for axis, dim in enumerate(tensor.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value > 0:
            dims.append(int(dim.dim_value))
        elif dim.dim_param and dim.dim_param != "?":
            dims.append(dim.dim_param)
        else:
            dims.append(f"{info.name}.{axis}")
    is_text = or_strings and tensor.elem_type == TensorProto.STRING
    return TensorType(BYTES if is_text else dtype_name(tensor.elem_type), tuple(dims))
