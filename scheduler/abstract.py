"""Abstract graphs: units with given latencies, to study planners without any device.

    {"operators": [{"id": 3, "name": "conv", "inputs": [1, 2], "latency_us": 12.0}, ...],
     "group_overhead_us": 5.0}

Ids are integers. Inputs name operators that stand earlier; unknown ids are external values. An
operator may also say ``memory_bound`` (true or false) and ``demand`` (a number), which Opara
reads. Other fields are ignored.
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec

from braid.core.errors import InvalidArtefact
from braid.core.measurement import DeviceFacts, StageOverheads, UnitProfile
from braid.scheduler.cost import OperatorLatencies
from braid.scheduler.units import Operand, UnitGraph

_Number = Annotated[float, msgspec.Meta(ge=0)]


class _Operator(msgspec.Struct):
    id: int
    name: str | int | None = None
    inputs: tuple[int, ...] = ()
    latency_us: _Number = 1.0
    demand: _Number | None = None
    memory_bound: bool = False


class _Document(msgspec.Struct):
    operators: tuple[_Operator, ...]
    name: str = "graph"
    group_overhead_us: _Number = 0.0


@dataclass(frozen=True, slots=True)
class AbstractGraph:
    """A graph with all that planners ask about it."""

    ids: tuple[int, ...]  # of each unit
    units: UnitGraph
    cost: OperatorLatencies
    facts: DeviceFacts


def load_abstract_graph(text: str | bytes) -> AbstractGraph:
    """Read an abstract graph from JSON; InvalidArtefact names the operator at fault."""
    try:
        document = msgspec.json.decode(text, type=_Document)
    except (ValueError, RecursionError) as error:
        raise InvalidArtefact(f"the graph cannot be read: {error}") from error
    operators = document.operators
    index = {entry.id: i for i, entry in enumerate(operators)}
    if len(index) < len(operators):
        raise InvalidArtefact("two operators have the same id")
    outside: dict[int, Operand] = {}
    operands = []
    for i, entry in enumerate(operators):
        row: list[Operand] = []
        for value in entry.inputs:
            if index.get(value, -1) >= i:
                raise InvalidArtefact(
                    f"operator {entry.id} reads {value}, which does not stand before it"
                )
            external = outside.setdefault(value, (-1 - len(outside), 0))
            row.append((index[value], 0) if value in index else external)
        operands.append(tuple(row))
    latencies = [entry.latency_us for entry in operators]
    units = UnitGraph(
        name=document.name,
        names=tuple(str(entry.id if entry.name is None else entry.name) for entry in operators),
        kinds=("unit",) * len(operators),
        signatures=tuple(map(repr, latencies)),  # all that the cost knows of a unit
        operands=tuple(operands),
    )
    return AbstractGraph(
        ids=tuple(index),
        units=units,
        cost=OperatorLatencies(latencies, document.group_overhead_us),
        facts=_facts(document),
    )


def _facts(document: _Document) -> DeviceFacts:
    """Facts of a device on which a unit alone pays no fixed price; demand defaults to latency."""
    return DeviceFacts(
        overheads=StageOverheads(stage_us=0.0, group_us=document.group_overhead_us),
        profiles=tuple(
            UnitProfile(
                demand=entry.latency_us if entry.demand is None else entry.demand,
                memory_bound=entry.memory_bound,
            )
            for entry in document.operators
        ),
    )
