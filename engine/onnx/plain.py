"""Rare but valid parts of a model in their common form, so that every reader takes them.

sparse initialiser, sparse constant ──> the same tensor, dense
tensor listed twice as an output    ──> listed once
input without a shape               ──> as many open extents as the caller's shape has
ZipMap: a dictionary for each row   ──> Identity: the tensor of scores [rows, classes]
"""

import math
from collections.abc import Mapping

import torch
from onnx import ModelProto, NodeProto, SparseTensorProto, TensorProto, TensorShapeProto, helper
from torch import Tensor

from braid.core.errors import ModelImportError
from braid.core.tensor import DTYPE_BYTES
from braid.engine.onnx.builder import UnsupportedUse
from braid.engine.onnx.structure import all_nodes, graphs_of
from braid.engine.onnx.tensors import dtype_name, to_tensor
from braid.engine.ops.families.indexing import flat_places

MAX_DENSE_BYTES = 2 << 30  # most bytes of all sparse tensors of a model, made dense


def make_plain(model: ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Change a model, which has its weights in memory, in place.

    ``shapes``, known to work, decide ranks that the file leaves out. Raises ``ModelImportError``
    if a sparse tensor is malformed, or dense ones would take too much.
    """
    _make_dense(model)
    outputs = {output.name: output for output in reversed(model.graph.output)}
    if len(outputs) < len(model.graph.output):
        once = [outputs.pop(o.name) for o in [*model.graph.output] if o.name in outputs]
        del model.graph.output[:]
        model.graph.output.extend(once)
    for info in model.graph.input:
        tensor = info.type.tensor_type
        is_open = info.type.HasField("tensor_type") and not tensor.HasField("shape")
        if is_open and info.name in shapes:
            tensor.shape.dim.extend(TensorShapeProto.Dimension() for _ in shapes[info.name])
            tensor.shape.SetInParent()  # also of a scalar


def _make_dense(model: ModelProto) -> None:
    graphs = [graph for graph in graphs_of(model) if graph.sparse_initializer]
    constants = [
        attribute
        for body in (model.graph.node, *(function.node for function in model.functions))
        for node in all_nodes(body)
        for attribute in node.attribute
        if node.op_type == "Constant" and attribute.HasField("sparse_tensor")
    ]
    sparse = [one for graph in graphs for one in graph.sparse_initializer]
    sparse += [constant.sparse_tensor for constant in constants]
    if sum(map(_dense_bytes, sparse)) > MAX_DENSE_BYTES:
        raise ModelImportError(
            f"the sparse tensors of the model take more than {MAX_DENSE_BYTES} bytes as dense "
            "ones, as which they are served; make them smaller"
        )
    for graph in graphs:
        graph.initializer.extend(_dense(one) for one in graph.sparse_initializer)
        del graph.sparse_initializer[:]
    for constant in constants:
        constant.t.CopyFrom(_dense(constant.sparse_tensor))
        constant.ClearField("sparse_tensor")
        constant.name, constant.type = "value", constant.TENSOR


def _dense_bytes(sparse: SparseTensorProto) -> int:
    label, shape = f"sparse tensor {sparse.values.name!r}", list(sparse.dims)
    if not shape or min(shape) < 0:
        raise ModelImportError(f"{label} has the shape {shape}, which no sparse tensor has")
    try:
        return math.prod(shape) * DTYPE_BYTES[dtype_name(sparse.values.data_type)]
    except UnsupportedUse as error:
        raise ModelImportError(f"{label}: {error}; save the model with it dense") from error


def _dense(sparse: SparseTensorProto) -> TensorProto:
    label, shape = f"sparse tensor {sparse.values.name!r}", tuple(sparse.dims)
    try:
        values, indices = to_tensor(sparse.values), to_tensor(sparse.indices)
    except UnsupportedUse as error:
        raise ModelImportError(f"{label}: {error}; save the model with it dense") from error
    places = _places(label, shape, len(values) if values.dim() == 1 else -1, indices)
    flat = torch.zeros(math.prod(shape), dtype=values.dtype)
    flat[places] = values
    raw = flat.view(torch.uint8).numpy().tobytes()
    return TensorProto(
        name=sparse.values.name, data_type=sparse.values.data_type, dims=shape, raw_data=raw
    )


def _places(label: str, shape: tuple[int, ...], count: int, indices: Tensor) -> Tensor:
    """Places of values in the flat tensor; ``ModelImportError`` for invalid or double ones."""
    if indices.is_floating_point() or indices.dtype == torch.bool or count < 0:
        raise ModelImportError(f"{label} is malformed: give a list of values and integer indices")
    extents = shape if indices.dim() == 2 else (math.prod(shape),)
    if tuple(indices.shape) not in ((count,), (count, len(shape))):
        raise ModelImportError(
            f"{label} has indices of shape {list(indices.shape)} for {count} values in "
            f"{len(shape)} dimensions; [values] or [values, dimensions] is valid"
        )
    columns = indices.to(torch.int64).reshape(count, len(extents))
    if bool(((columns < 0) | (columns >= torch.tensor(extents))).any()):
        raise ModelImportError(f"{label} has indices outside its shape {list(shape)}")
    places = flat_places(columns, extents)
    if len(places.unique()) < count:
        raise ModelImportError(f"{label} has two values at one index")
    return places


_MOST_CLASSES = 10  # named in a remark
_MOST_CHARACTERS = 300


def without_dictionaries(model: ModelProto) -> str:
    """Replace ZipMaps in place by the tensors they read; returns a remark on outputs."""
    outputs = {output.name: output for output in model.graph.output}
    remarks = []
    for node in model.graph.node:
        name = next(iter(node.output), "")
        if (node.domain, node.op_type) != ("ai.onnx.ml", "ZipMap") or name not in outputs:
            continue
        classes = _classes(node)
        node.CopyFrom(helper.make_node("Identity", node.input, node.output))
        outputs[name].type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
        remarks.append(
            f"output {name!r} is a tensor in place of dictionaries (ZipMap); its columns are the "
            f"classes {classes}"
        )
    return "; ".join(remarks)


def _classes(node: NodeProto) -> str:
    texts = [text.decode(errors="replace") for given in node.attribute for text in given.strings]
    keys = texts or [str(number) for given in node.attribute for number in given.ints]
    named = ", ".join(keys[:_MOST_CLASSES])[:_MOST_CHARACTERS]
    return named + (", ..." if len(keys) > _MOST_CLASSES else "")
