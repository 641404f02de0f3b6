"""An order to lower the nodes of an untrusted graph in.

Recursion goes through subgraphs only, whose depth ``structure.check_nesting`` has bounded.
"""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

import onnx

from braid.core.errors import ModelImportError
from braid.engine.onnx.builder import Builder
from braid.engine.onnx.structure import subgraphs


def reads_of(node: onnx.NodeProto) -> set[str]:
    """Names a node reads from its graph, through its subgraphs too."""
    names = set(filter(None, node.input))
    for graph in subgraphs(node):
        inner = {proto.name for proto in graph.initializer} | {info.name for info in graph.input}
        inner.update(output for child in graph.node for output in child.output)
        for child in graph.node:
            names |= reads_of(child) - inner
        names |= {info.name for info in graph.output} - inner
    return names


def in_order(
    graph: onnx.GraphProto, path: str, builder: Builder
) -> Iterator[tuple[onnx.NodeProto, str]]:
    """Nodes, with their labels, in an order in which each reads only earlier results.

    It is the file's order, if that is one. Raises ``ModelImportError`` for a value that nothing
    produces, one produced twice, or a cycle.
    """
    labels = [f"{path}{node.name or f'{node.op_type}_{i}'}" for i, node in enumerate(graph.node)]
    made_by: dict[str, int] = {}
    for i, node in enumerate(graph.node):
        for output in filter(None, node.output):
            if output in made_by or builder.defined_here(output):
                raise ModelImportError(
                    f"value {output!r} is produced twice (the second time by {labels[i]!r})"
                )
            made_by[output] = i
    waits: list[int] = []
    readers: dict[int, list[int]] = {}
    for i, node in enumerate(graph.node):
        needed = set()
        for name in reads_of(node):
            if name in made_by:
                needed.add(made_by[name])
            elif builder.resolve(name) is None:
                raise ModelImportError(f"{labels[i]!r} reads {name!r}, which nothing produces")
        waits.append(len(needed))
        for source in needed:
            readers.setdefault(source, []).append(i)
    yield from ((graph.node[i], labels[i]) for i in _topological(waits, readers, labels))


def _topological(
    waits: list[int], readers: dict[int, list[int]], labels: Sequence[str]
) -> list[int]:
    """Kahn's algorithm, the earliest listed node first."""
    ready = [i for i, count in enumerate(waits) if count == 0]
    order = []
    while ready:
        node = heappop(ready)
        order.append(node)
        for reader in readers.get(node, ()):
            waits[reader] -= 1
            if waits[reader] == 0:
                heappush(ready, reader)
    if len(order) < len(waits):
        stuck = [labels[i] for i, count in enumerate(waits) if count]
        raise ModelImportError(f"the graph has a cycle through {', '.join(stuck[:5])}")
    return order
