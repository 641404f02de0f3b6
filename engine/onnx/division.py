"""What of a model would let some content end the process that runs it, in a safe form.

ONNX Runtime leaves the least integer divided by -1 to the processor, which ends the process
(SIGFPE); a divisor of 0 it refuses itself. Whatever is divided by -1 is negated instead, which
gives the least integer for itself and for all others the same:

    Div(a, b)  ──>  Where(b = -1, Neg(a), Div(a, Where(b = -1, Neg(b), b)))

STFT divides by its step and its length without a look at them, so these are made by an operator
that refuses 0:

    STFT(x, step, window, length)  ──>  STFT(x, step + step mod step, window, length + ...)

DeformConv reads memory at a place that is NaN, so such a place is moved out of the image:

    DeformConv(x, w, offset)  ──>  DeformConv(x, w, Where(IsNaN(offset), far, offset))

ONNX Runtime has no recurrent layers whose batch comes first, so these are transposed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, inliner, numpy_helper

from braid.engine.onnx.structure import DEFAULT_DOMAINS, subgraphs

_WIDE = (TensorProto.INT32, TensorProto.INT64)  # of shorter ones, the quotient is made in these
_LAYERS = ("GRU", "LSTM", "RNN")
_OUTSIDE = -6e4  # of any image; FP16 has it
_MOST_KEPT = 64  # elements of an initialiser that the types of values may depend on


def divides_integers(model: ModelProto) -> bool:
    model = inlined(model)
    unsafe = _Unsafe(model)
    graphs = _graphs(model.graph) if unsafe.may_be else ()
    return any(unsafe.has(node) for graph in graphs for node in graph.node)


def guard_division(model: ModelProto) -> ModelProto:
    """Return a model whose divisions of integers take any content; it may be the same one."""
    model = inlined(model)
    unsafe = _Unsafe(model)
    if unsafe.may_be:
        _guard(model.graph, unsafe)
    return model


def guarded_bytes(model: bytes) -> bytes:
    if not any(kind in model for kind in (b"Div", b"STFT", b"DeformConv", b"layout")):
        return model
    return bytes(guard_division(onnx.load_model_from_string(model)).SerializeToString())


def _guard(graph: GraphProto, unsafe: _Unsafe) -> None:
    nodes: list[NodeProto] = []
    for node in graph.node:
        for inner in subgraphs(node):
            _guard(inner, unsafe)
        if node.op_type == "STFT":
            nodes += _with_steps(node)
        elif node.op_type == "DeformConv":
            nodes += _with_places(node)
        elif node.op_type in _LAYERS and any(a.name == "layout" and a.i for a in node.attribute):
            nodes += _with_time_first(node)
        else:
            nodes += _guarded(node, unsafe.kind(node)) if unsafe.has(node) else [node]
    kept = GraphProto(node=nodes)
    del graph.node[:]
    graph.node.extend(kept.node)


def inlined(model: ModelProto) -> ModelProto:
    return inliner.inline_local_functions(model) if model.functions else model


class _Unsafe:
    """Divisions of a model whose divisor may be -1, of integers or of an unknown type."""

    def __init__(self, model: ModelProto) -> None:
        graphs = list(_graphs(model.graph))
        kinds = {node.op_type for graph in graphs for node in graph.node}
        self.may_be = not kinds.isdisjoint(("DeformConv", "Div", "STFT", *_LAYERS))
        self._types = _types(model) if self.may_be else {}
        self._constants = {c.name: c for graph in graphs for c in graph.initializer}

    def kind(self, node: NodeProto) -> int:
        """Element type of a division; 0: it is not known."""
        names = (*node.input, *node.output)
        return next((kind for name in names if (kind := self._types.get(name, 0))), 0)

    def has(self, node: NodeProto) -> bool:
        if node.op_type != "Div" or node.domain not in DEFAULT_DOMAINS:
            return False
        divisor = self._constants.get(node.input[1])
        is_safe = divisor is not None and not (numpy_helper.to_array(divisor) == -1).any()
        return self.kind(node) in (*_WIDE, 0) and not is_safe


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from _graphs(inner)


def _types(model: ModelProto) -> dict[str, int]:
    """Element types of values, as far as they can be told without the weights."""
    outline = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    outline.graph.CopyFrom(_without_weights(model.graph))
    told = onnx.shape_inference.infer_shapes(outline)
    types: dict[str, int] = {}
    for graph in _graphs(told.graph):
        types |= {c.name: c.data_type for c in graph.initializer}
        for info in (*graph.input, *graph.output, *graph.value_info):
            if info.type.tensor_type.elem_type:
                types[info.name] = info.type.tensor_type.elem_type
    return types


def _without_weights(graph: GraphProto) -> GraphProto:
    light = GraphProto(name=graph.name, node=graph.node, input=graph.input, output=graph.output)
    for constant in graph.initializer:
        kept = light.initializer.add(name=constant.name, data_type=constant.data_type)
        kept.dims.extend(constant.dims)
        if np.prod(constant.dims, dtype=float) <= _MOST_KEPT:
            kept.CopyFrom(constant)
    return light


def _guarded(node: NodeProto, kind: int) -> list[NodeProto]:
    (a, b), (y,) = node.input, node.output
    compared, nodes = b, []
    if not kind:
        compared, kind = f"{y}/float", TensorProto.FLOAT
        nodes = [helper.make_node("Cast", [b], [compared], to=kind)]
    minus = helper.make_tensor("minus", kind, [], [-1])
    return [
        *nodes,
        helper.make_node("Constant", [], [f"{y}/minus"], value=minus),
        helper.make_node("Equal", [compared, f"{y}/minus"], [f"{y}/is_minus"]),
        helper.make_node("Neg", [b], [f"{y}/one"]),
        helper.make_node("Where", [f"{y}/is_minus", f"{y}/one", b], [f"{y}/divisor"]),
        helper.make_node("Div", [a, f"{y}/divisor"], [f"{y}/quotient"], node.name),
        helper.make_node("Neg", [a], [f"{y}/negated"]),
        helper.make_node("Where", [f"{y}/is_minus", f"{y}/negated", f"{y}/quotient"], [y]),
    ]


def _with_steps(node: NodeProto) -> list[NodeProto]:
    guarded, nodes = NodeProto(), []
    guarded.CopyFrom(node)
    for place in (1, 3):
        given = node.input[place] if place < len(node.input) else ""
        if given:
            rest, guarded.input[place] = (f"{node.output[0]}/{place}/{part}" for part in "ab")
            nodes += [
                helper.make_node("Mod", [given, given], [rest]),
                helper.make_node("Add", [given, rest], [guarded.input[place]]),
            ]
    return [*nodes, guarded]


def _with_places(node: NodeProto) -> list[NodeProto]:
    guarded, y, offset = NodeProto(), node.output[0], node.input[2]
    guarded.CopyFrom(node)
    guarded.input[2] = f"{y}/offset"
    return [
        helper.make_node("Constant", [], [f"{y}/number"], value_float=_OUTSIDE),
        helper.make_node("CastLike", [f"{y}/number", offset], [f"{y}/outside"]),
        helper.make_node("IsNaN", [offset], [f"{y}/is_none"]),
        helper.make_node("Where", [f"{y}/is_none", f"{y}/outside", offset], [f"{y}/offset"]),
        guarded,
    ]


def _with_time_first(node: NodeProto) -> list[NodeProto]:
    layer, nodes = NodeProto(), list[NodeProto]()
    layer.CopyFrom(node)
    del layer.attribute[:]
    layer.attribute.extend(a for a in node.attribute if a.name != "layout")
    for place in (0, 5, 6):  # the sequences, first states
        if place < len(node.input) and (name := node.input[place]):
            layer.input[place] = made = f"{next(filter(None, node.output))}/{place}"
            nodes.append(helper.make_node("Transpose", [name], [made], perm=[1, 0, 2]))
    nodes.append(layer)
    for place, name in enumerate(node.output):
        if not name:
            continue
        layer.output[place] = made = f"{name}/time_first"
        perm = [1, 0, 2] if place else [2, 0, 1, 3]
        nodes.append(helper.make_node("Transpose", [made], [name], perm=perm))
    return nodes
