"""The structure of an untrusted graph: nesting, who reads what, an order to lower nodes in.

Recursion goes through subgraphs only, whose depth is bounded first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

import onnx
from onnx import AttributeProto

from braid.core.errors import ModelImportError
from braid.engine.lowering.builder import Builder

MAX_NESTING = 16


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs among a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def check_nesting(graph: onnx.GraphProto) -> None:
    """Refuse subgraphs in subgraphs beyond any real model, without recursion.

    Raises:
        ModelImportError: deeper than ``MAX_NESTING``.
    """
    pending = [(graph, 0)]
    while pending:
        current, depth = pending.pop()
        if depth > MAX_NESTING:
            raise ModelImportError(f"subgraphs are nested more than {MAX_NESTING} deep")
        for node in current.node:
            pending.extend((inner, depth + 1) for inner in subgraphs(node))


def count_reads(graph: onnx.GraphProto) -> Counter[str]:
    """How often each name is read anywhere, outputs included."""
    reads: Counter[str] = Counter(info.name for info in graph.output)
    for node in graph.node:
        reads.update(node.input)
        for inner in subgraphs(node):
            reads.update(count_reads(inner))
    return reads


def _reads(node: onnx.NodeProto) -> set[str]:
    """Names a node reads from its graph, through its subgraphs too."""
    names = set(filter(None, node.input))
    for graph in subgraphs(node):
        inner = {proto.name for proto in graph.initializer} | {info.name for info in graph.input}
        inner.update(output for child in graph.node for output in child.output)
        for child in graph.node:
            names |= _reads(child) - inner
        names |= {info.name for info in graph.output} - inner
    return names


def in_order(
    graph: onnx.GraphProto, path: str, builder: Builder
) -> Iterator[tuple[onnx.NodeProto, str]]:
    """Nodes so that each reads only what came before, with their labels.

    Files list nodes in such an order already, mostly; then it is kept.

    Raises:
        ModelImportError: a value that nothing produces, one produced twice, or a cycle.
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
        for name in _reads(node):
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
