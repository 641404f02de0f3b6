"""The graph as planners see it: units, who reads from whom, and what makes two units equal.

A unit graph knows no tensor and no weight. Each unit has a *signature* (what it computes, on
which shapes) and *operands* (whose output it reads); together they decide which stages are equal.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from braid.core.errors import InvalidArtefact
from braid.core.graph import Operator, OpGraph

Operand = tuple[int, int]
"""(producing unit, output number); (-1 - k, 0) is the k-th value from outside the graph."""


@dataclass(frozen=True, slots=True)
class UnitGraph:
    """Schedule units in topological order."""

    name: str
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    signatures: tuple[str, ...]  # kind, attributes, shapes, dtypes of each unit; not its wiring
    operands: tuple[tuple[Operand, ...], ...]
    predecessors: tuple[tuple[int, ...], ...] = field(init=False)  # ascending, derived

    def __post_init__(self) -> None:
        counts = {len(self.names), len(self.kinds), len(self.signatures), len(self.operands)}
        if len(counts) != 1:
            raise InvalidArtefact(f"unit graph {self.name!r}: the columns have unequal lengths")
        for unit, operands in enumerate(self.operands):
            if any(producer >= unit for producer, _ in operands):
                raise InvalidArtefact(
                    f"unit {self.names[unit]!r} reads from itself or from a later unit"
                )
        derived = tuple(
            tuple(sorted({producer for producer, _ in operands if producer >= 0}))
            for operands in self.operands
        )
        object.__setattr__(self, "predecessors", derived)

    def __len__(self) -> int:
        return len(self.names)

    @staticmethod
    def from_graph(graph: OpGraph) -> UnitGraph:
        """The units of a graph; InvalidArtefact: a spec is missing, specialise the graph first."""
        producer = {
            out: (i, k) for i, op in enumerate(graph.operators) for k, out in enumerate(op.outputs)
        }
        outside: dict[str, Operand] = {}
        operands = []
        for op in graph.operators:
            reads = [name for name in op.reads() if name not in graph.constants]
            for name in reads:
                if name not in producer:
                    outside.setdefault(name, (-1 - len(outside), 0))
            operands.append(tuple(producer.get(name) or outside[name] for name in reads))
        return UnitGraph(
            name=graph.name,
            names=tuple(op.name for op in graph.operators),
            kinds=tuple(op.kind for op in graph.operators),
            signatures=tuple(_signature(graph, op) for op in graph.operators),
            operands=tuple(operands),
        )

    def restrict(self, units: Sequence[int]) -> UnitGraph:
        """The graph of some units alone, renumbered; values from other units are external."""
        local = {unit: i for i, unit in enumerate(units)}
        outside: dict[Operand, Operand] = {}
        operands = []
        for unit in units:
            row = []
            for producer, port in self.operands[unit]:
                if producer in local:
                    row.append((local[producer], port))
                else:
                    fresh = (-1 - len(outside), 0)
                    row.append(outside.setdefault((producer, port), fresh))
            operands.append(tuple(row))
        return UnitGraph(
            name=self.name,
            names=tuple(self.names[unit] for unit in units),
            kinds=tuple(self.kinds[unit] for unit in units),
            signatures=tuple(self.signatures[unit] for unit in units),
            operands=tuple(operands),
        )


def as_units(graph: OpGraph | UnitGraph) -> UnitGraph:
    return graph if isinstance(graph, UnitGraph) else UnitGraph.from_graph(graph)


def _signature(graph: OpGraph, op: Operator) -> str:
    """Canonical text of what a unit computes: kind, attributes, operand and result specs."""

    def spec(value: str) -> str | None:
        if not value:
            return None
        try:
            text = str(graph.spec(value))
        except KeyError:
            raise InvalidArtefact(
                f"operator {op.name!r}: the shape of {value!r} is unknown; specialise the graph"
            ) from None
        return f"const {text}" if value in graph.constants else text

    parts = [
        op.kind,
        op.attributes_of_speed(),
        dict(op.host),
        [spec(value) for value in op.inputs],
        [spec(value) for value in op.outputs],
    ]
    return json.dumps(parts, sort_keys=True, separators=(",", ":"))
