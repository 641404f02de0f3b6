"""Outputs of a model whose shape may follow the content of its inputs.

    inputs ──NonZero, NonMaxSuppression, ...──> values of any length ──> outputs

Content that is drawn does not show every length, so what comes of such operators is not relied on.
"""

from __future__ import annotations

import onnx

from braid.engine.onnx.structure import all_nodes, subgraphs

_BY_CONTENT = frozenset({"Compress", "NonMaxSuppression", "NonZero", "StringSplit", "Unique"})


def outputs_by_content(graph: onnx.GraphProto) -> set[str]:
    """Names of values that come of operators whose results have a length by content.

    Args:
        graph: without local functions.
    """
    constants = {"", *(proto.name for proto in graph.initializer)}
    found: set[str] = set()
    for node in graph.node:
        inside = list(all_nodes([node]))
        read = {name for one in inside for name in one.input}
        if read <= constants and not any(subgraphs(node)):
            constants.update(node.output)
        elif read & found or any(one.op_type in _BY_CONTENT for one in inside):
            found.update(node.output)
        elif node.op_type == "Loop" and not _is_counted(node, constants):
            found.update(node.output[len(node.input) - 2 :])  # one row for each turn
    return found - {""}


def _is_counted(loop: onnx.NodeProto, constants: set[str]) -> bool:
    """Whether a loop certainly makes a constant number of turns."""
    count, condition = loop.input[:2]
    (body,) = subgraphs(loop)
    own = {name for node in body.node if node.op_type == "Identity" for name in node.output}
    sources = {node.output[0]: node.input[0] for node in body.node if node.output[0] in own}
    goes_on = body.output[0].name
    kept = sources.get(goes_on, goes_on) == body.input[1].name
    return bool(count) and count in constants and not condition and kept
