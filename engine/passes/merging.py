"""A walk over a static graph in which operators are merged into ones before them.

    a ─> b ─> c, b merged into a:   a' ─> c      a' has a's place and comes after what a did

Whether a value is computed before an operator could start anyway is read from its ancestors, so
that merging never takes away an operator that could run beside another.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

from braid.core.graph import Operator, OpGraph


class Merging:
    """Operators of a graph, some of them merged so far."""

    def __init__(self, graph: OpGraph) -> None:
        self._graph = graph
        self._reads = Counter(name for op in graph.operators for name in op.inputs)
        self._reads.update(graph.outputs.values())
        self._made_by = graph.producers()
        self._ancestors: list[int] = []  # of each operator, as a bit set
        self._operators: list[Operator | None] = list(graph.operators)

    def walk(self) -> Iterator[tuple[int, Operator]]:
        """Yield each operator as the graph had it, with its index, in order."""
        for index, op in enumerate(self._graph.operators):
            above = 0
            for name in op.inputs:
                if (maker := self._made_by.get(name)) is not None:
                    above |= self._ancestors[maker] | 1 << maker
            self._ancestors.append(above)
            yield index, op

    def only_read(self, value: str) -> tuple[int, Operator] | None:
        """Return the operator that makes a value, with its index, if it is read just once."""
        root = self._made_by.get(value, -1)
        producer = self._operators[root] if root >= 0 and self._reads[value] == 1 else None
        return None if producer is None else (root, producer)

    def is_ready(self, value: str, root: int) -> bool:
        """Return whether a value is computed before operator ``root`` could start anyway."""
        maker = self._made_by.get(value)
        return maker is None or bool(self._ancestors[root] >> maker & 1)

    def merge(self, index: int, root: int, merged: Operator) -> None:
        """Put ``merged`` in the place of operator ``root``, and drop the one at ``index``."""
        self._operators[root], self._operators[index] = merged, None
        self._made_by[merged.outputs[0]] = root
        self._ancestors[index] = self._ancestors[root]

    def graph(self) -> OpGraph:
        """Return the graph with what was merged."""
        kept = tuple(op for op in self._operators if op is not None)
        made = {name for op in kept for name in op.outputs}
        specs = {name: spec for name, spec in self._graph.specs.items() if name in made}
        return dataclasses.replace(self._graph, operators=kept, specs=specs)
