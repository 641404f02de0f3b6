"""Ranges and statistics that a model finds in its data, which the rows of a batch would share.

    graph, subgraphs ──names that no input decides──> scales of constants
                                                 └──> the first scale that is none

ONNX Runtime takes them from whole tensors: a batch is one tensor, so each answer would depend on
its neighbours, by less than quantised models may differ anyway. Functions must be inlined before.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import onnx

from braid.engine.onnx.structure import subgraphs

_FROM_DATA = frozenset({"DynamicQuantizeLSTM", "DynamicQuantizeLinear", "DynamicQuantizeMatMul"})
"""Operators that take the range of a whole operand."""

_SCALES: Mapping[str, tuple[int, ...]] = {
    "QuantizeLinear": (1,),
    "QLinearConv": (1, 6),
    "QLinearMatMul": (1, 6),
    "QGemm": (1, 7),
    "QLinearAdd": (1, 4, 6),
    "QLinearMul": (1, 4, 6),
    "QLinearConcat": (0,),
    **dict.fromkeys(
        (
            *("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "QLinearReduceMean"),
            *("QLinearAveragePool", "QLinearGlobalAveragePool"),
        ),
        (1, 3),
    ),
}
"""Operands of quantising operators that are scales of activations."""

_OF_SHAPES = frozenset({"Shape", "Size"})


def range_from_data(graph: onnx.GraphProto, outer: Set[str] = frozenset()) -> str:
    """Return the first operator whose range or statistics come from the data; "" if there is none.

    Args:
        graph: without local functions.
        outer: names outside of it that no input decides.
    """
    constants = set(outer) - {info.name for info in graph.input}
    constants.update(proto.name for proto in graph.initializer)
    constants.update(proto.values.name for proto in graph.sparse_initializer)
    for node in graph.node:
        if _takes_range(node, constants):
            return f"{node.op_type} ({node.name or next(iter(node.output), '')})"
        inner = list(subgraphs(node))
        for body in inner:
            if operator := range_from_data(body, constants):
                return operator
        if not inner and (node.op_type in _OF_SHAPES or constants.issuperset(node.input)):
            constants.update(node.output)
        else:
            constants.difference_update(node.output)
        constants.add("")  # stands for an absent operand
    return ""


def _takes_range(node: onnx.NodeProto, constants: Set[str]) -> bool:
    if node.op_type in _FROM_DATA:
        return not constants >= {*node.input[:1]}
    if node.op_type == "BatchNormalization":
        return any(a.name == "training_mode" and a.i for a in node.attribute)
    scales = [node.input[at] for at in _SCALES.get(node.op_type, ()) if at < len(node.input)]
    return not constants >= {*scales}
