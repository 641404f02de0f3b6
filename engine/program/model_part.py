"""Parts of a model's file, cut out between tensors of the file.

    nodes from the outputs back to the inputs + initialisers that they read ──> a model of its own

Exporters compute the operands of reshapes from shapes of tensors far above. The static graph knows
those shapes, so a ``Shape`` of a tensor outside whose shape is known becomes a constant; what it
reads stays out of the part. Nothing else is rewritten: what an engine computes is what the file
says, and a part whose border leaves the batch open is the same file for each batch size.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

from braid.core.errors import PreconditionFailed
from braid.core.tensor import TensorType
from braid.engine.onnx.node_order import reads_of
from braid.engine.onnx.tensors import DTYPES

MAX_PART_BYTES = (1 << 31) - 1  # the most that a protobuf message takes
_SMALL_BYTES = 1024  # initialisers that may decide shapes are not larger

_ELEMENTS = {name: element for element, name in DTYPES.items()}

Border = Mapping[str, TensorType]  # by name; extents may be open

NO_NAMES: Mapping[str, str] = MappingProxyType({})


class ModelParts:
    """A model's file, of which parts are cut out. Holds all its weights."""

    def __init__(self, model: onnx.ModelProto, inputs: Border) -> None:
        """Infer shapes for static inputs; ``model`` has all its weights, and is changed."""
        graph = model.graph
        self._frame = onnx.ModelProto(
            ir_version=model.ir_version,
            opset_import=model.opset_import,
            functions=model.functions,
        )
        self._initialisers = {proto.name: proto for proto in graph.initializer}
        self._sparse = {proto.values.name: proto for proto in graph.sparse_initializer}
        self._shapes = _inferred(model, inputs)
        self._nodes = list(graph.node)
        self._made_by = {
            output: at
            for at, node in enumerate(self._nodes)
            for output in filter(None, node.output)
        }
        self.tensors = frozenset(self._made_by) | set(inputs)  # those that can be borders

    def cut(
        self, given: Border, outputs: Border, equal: Mapping[str, str] = NO_NAMES
    ) -> tuple[bytes, list[str]]:
        """A model of the nodes between two borders, and those of ``given`` that it reads.

        Inputs of the model in ``given`` that are not needed at the border are needed where the part
        computes again what the graph computes once. ``equal``: tensors that hold what a given
        one holds. Raises ``PreconditionFailed`` if more is needed, or the part is too large.
        """
        graph = onnx.GraphProto(name="part")
        graph.output.extend(_info(name, spec) for name, spec in outputs.items())
        pending, kept, ends, read = list(outputs), set[int](), set[str](), set[str]()
        shapes: dict[str, np.ndarray[Any, Any]] = {}  # known ones of tensors, inside or outside
        while pending:
            name = pending.pop()
            if name in ends:
                continue
            if name in given:
                graph.input.append(_info(name, given[name]))
                ends.add(name)
                read.add(name)
            elif name in equal:
                pending.append(equal[name])
                graph.node.append(helper.make_node("Identity", [equal[name]], [name]))
                ends.add(name)
            elif name in self._initialisers:
                graph.initializer.append(self._initialisers[name])
                ends.add(name)
            elif name in self._sparse:
                graph.sparse_initializer.append(self._sparse[name])
                ends.add(name)
            elif name not in self._made_by:
                raise PreconditionFailed(f"the part reads {name!r}, which is not in its border")
            elif (shape := self._known_shape(self._nodes[self._made_by[name]])) is not None:
                shapes[name] = shape
                ends.add(name)
            elif self._made_by[name] not in kept:
                kept.add(self._made_by[name])
                pending += reads_of(self._nodes[self._made_by[name]])
        for name, shape in shapes.items():
            at = self._made_by[name]
            (source,) = self._nodes[at].input
            if source in read or self._made_by.get(source) in kept:
                kept.add(at)
            else:
                graph.initializer.append(numpy_helper.from_array(shape, name))
        graph.node.extend(self._nodes[at] for at in sorted(kept))
        part = onnx.ModelProto()
        part.CopyFrom(self._frame)
        part.graph.CopyFrom(graph)
        if part.ByteSize() > MAX_PART_BYTES:
            raise PreconditionFailed("the part is larger than 2 GiB")
        return part.SerializeToString(), [name for name in given if name in read]

    def _known_shape(self, node: onnx.NodeProto) -> np.ndarray[Any, Any] | None:
        """What a ``Shape`` of a tensor whose shape is known gives; None for other nodes."""
        if node.op_type != "Shape" or node.domain or node.input[0] not in self._shapes:
            return None
        bounds = {attribute.name: attribute.i for attribute in node.attribute}
        shape = self._shapes[node.input[0]]
        return np.asarray(shape[bounds.get("start", 0) : bounds.get("end", len(shape))], np.int64)


def _info(name: str, spec: TensorType) -> onnx.ValueInfoProto:
    if spec.dtype not in _ELEMENTS:
        raise PreconditionFailed(f"tensor {name!r} of the border is {spec.dtype}")
    return helper.make_tensor_value_info(name, _ELEMENTS[spec.dtype], list(spec.shape))


def _inferred(model: onnx.ModelProto, inputs: Border) -> dict[str, tuple[int, ...]]:
    """Shapes of tensors that follow from those of the inputs, without a look at weights."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    graph = bare.graph
    for proto in graph.initializer:
        if proto.ByteSize() > _SMALL_BYTES:
            for content in ("raw_data", "float_data", "int32_data", "int64_data", "double_data"):
                proto.ClearField(content)
    given = {proto.name for proto in graph.initializer}
    del graph.value_info[:]
    del graph.input[:]
    graph.input.extend(_info(name, spec) for name, spec in inputs.items() if name not in given)
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")
    try:
        inferred = shape_inference.infer_shapes(bare, data_prop=True).graph
    except Exception:  # whatever its C++ throws: then shapes stay unknown
        return {}
    shapes = {}
    for info in (*inferred.input, *inferred.value_info):
        tensor = info.type.tensor_type
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            shapes[info.name] = tuple(dim.dim_value for dim in tensor.shape.dim)
    return shapes
