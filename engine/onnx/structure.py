"""Bounds on the structure of an untrusted model: nesting of subgraphs, number of nodes.

Loads no torch: a file is checked before that. The bounds come before onnx's checker and inliner,
which themselves can be made to spin: thirty functions that each call the next one twice stand for
a billion nodes in two kilobytes.
"""

from collections import deque
from collections.abc import Iterable, Iterator

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from braid.core.errors import ModelImportError

DEFAULT_DOMAINS = ("", "ai.onnx")  # of ONNX's own operators

_ON_INTEGERS = frozenset(
    {
        *("ConvInteger", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulInteger"),
        *("MatMulIntegerToFloat", "QAttention", "QGemm", "QLinearConv", "QLinearMatMul"),
    }
)

MAX_NODES = 200_000  # functions expanded; the largest real models have some 20,000
MAX_NESTING = 16  # of subgraphs


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH or attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Nodes with those of subgraphs; ``ModelImportError`` beyond ``MAX_NESTING``. No recursion."""
    pending = [(nodes, 0)]
    while pending:
        level, depth = pending.pop()
        if depth > MAX_NESTING:
            raise ModelImportError(f"subgraphs are nested more than {MAX_NESTING} deep")
        for node in level:
            yield node
            pending += [(graph.node, depth + 1) for graph in subgraphs(node)]


def graphs_of(model: ModelProto) -> Iterator[GraphProto]:
    """Graphs of a model: its own, and those of all nodes."""
    yield model.graph
    for body in (model.graph.node, *(function.node for function in model.functions)):
        for node in all_nodes(body):
            yield from subgraphs(node)


def multiplies_integers(model: ModelProto) -> bool:
    """Whether operators multiply 8-bit integers themselves, not numbers that they stand for."""
    bodies = (model.graph.node, *(function.node for function in model.functions))
    return any(node.op_type in _ON_INTEGERS for body in bodies for node in all_nodes(body))


def check_nesting(graph: GraphProto) -> None:
    """Raise ``ModelImportError`` for subgraphs nested more than ``MAX_NESTING`` deep."""
    deque(all_nodes(graph.node), maxlen=0)


def check_structure(model: ModelProto) -> None:
    """Bound the number of nodes, counting every function call as the function's body.

    Raises ``ModelImportError``, also for too deep nesting and functions that call themselves.
    """
    functions = {(f.domain, f.name): f for f in model.functions}
    if len(functions) != len(model.functions):
        raise ModelImportError("two local functions of the model have the same name")
    sizes: dict[tuple[str, str], int] = {}
    for key in _calls_first(functions):
        sizes[key] = _expanded_size(functions[key].node, sizes)
    _expanded_size(model.graph.node, sizes)


def _expanded_size(nodes: Iterable[NodeProto], sizes: dict[tuple[str, str], int]) -> int:
    count = 0
    for node in all_nodes(nodes):
        count += 1 + sizes.get((node.domain, node.op_type), 0)
        if count > MAX_NODES:
            raise ModelImportError(
                f"the model has more than {MAX_NODES} nodes (local functions expanded)"
            )
    return count


def _calls_first(
    functions: dict[tuple[str, str], FunctionProto],
) -> Iterator[tuple[str, str]]:
    """Functions, each after those it calls; ``ModelImportError`` if one calls itself."""
    calls = {
        key: {(n.domain, n.op_type) for n in all_nodes(f.node)} & functions.keys()
        for key, f in functions.items()
    }
    while calls:
        ready = [key for key, called in calls.items() if not called]
        if not ready:
            names = ", ".join(sorted(name for _, name in calls)[:5])
            raise ModelImportError(f"local functions of the model call themselves: {names}")
        for key in ready:
            del calls[key]
            yield key
        for called in calls.values():
            called.difference_update(ready)
