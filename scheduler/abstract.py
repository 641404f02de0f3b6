"""Abstract graphs: units with given latencies, to study planners without any device.

    {"operators": [{"id": 3, "name": "conv", "inputs": [1, 2], "latency_us": 12.0}, ...],
     "group_overhead_us": 5.0}

Ids are integers. Inputs name operators that stand earlier; unknown ids are external values. An
operator may also say ``memory_bound`` (true or false) and ``demand`` (a number), which Opara
reads. Other fields are ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from braid.core.errors import InvalidArtefact
from braid.core.measurement import DeviceFacts, StageOverheads, UnitProfile
from braid.scheduler.cost import OperatorLatencies
from braid.scheduler.units import Operand, UnitGraph


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
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArtefact(f"the graph is not JSON: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("operators"), list):
        raise InvalidArtefact('a graph is an object with a list of "operators"')
    operators = [_operator(entry) for entry in document["operators"]]
    index = {entry["id"]: i for i, entry in enumerate(operators)}
    if len(index) < len(operators):
        raise InvalidArtefact("two operators have the same id")
    outside: dict[int, Operand] = {}
    operands = []
    for i, entry in enumerate(operators):
        row: list[Operand] = []
        for value in entry["inputs"]:
            if index.get(value, -1) >= i:
                raise InvalidArtefact(
                    f"operator {entry['id']} reads {value}, which does not stand before it"
                )
            external = outside.setdefault(value, (-1 - len(outside), 0))
            row.append((index[value], 0) if value in index else external)
        operands.append(tuple(row))
    latencies = [entry["latency_us"] for entry in operators]
    overhead_us = _number(document, "group_overhead_us", 0.0)
    units = UnitGraph(
        name=str(document.get("name", "graph")),
        names=tuple(entry["name"] for entry in operators),
        kinds=("unit",) * len(operators),
        signatures=tuple(map(repr, latencies)),  # all that the cost knows of a unit
        operands=tuple(operands),
    )
    return AbstractGraph(
        ids=tuple(index),
        units=units,
        cost=OperatorLatencies(latencies, overhead_us),
        facts=_facts(operators, latencies, overhead_us),
    )


def _operator(entry: Any) -> dict[str, Any]:
    """One operator with every field present."""
    if not isinstance(entry, dict) or not _is_id(entry.get("id")):
        raise InvalidArtefact(f"an operator needs an integer id: {str(entry)[:200]}")
    inputs = entry.get("inputs", [])
    if not isinstance(inputs, list) or not all(map(_is_id, inputs)):
        raise InvalidArtefact(f"operator {entry['id']}: inputs must be a list of ids")
    return {
        "id": entry["id"],
        "name": str(entry.get("name", entry["id"])),
        "inputs": inputs,
        "latency_us": _number(entry, "latency_us", 1.0),
        "demand": _number(entry, "demand", -1.0) if "demand" in entry else None,
        "memory_bound": entry.get("memory_bound") is True,
    }


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(entry: Mapping[str, Any], field: str, default: float) -> float:
    value = entry.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        where = f"operator {entry['id']}: " if "id" in entry else ""
        raise InvalidArtefact(f"{where}{field} must be a number, not negative: {value!r}")
    return float(value)


def _facts(
    operators: list[dict[str, Any]], latencies: list[float], group_overhead_us: float
) -> DeviceFacts:
    """Facts of a device on which a unit alone pays no fixed price; demand defaults to latency."""
    return DeviceFacts(
        overheads=StageOverheads(stage_us=0.0, group_us=group_overhead_us),
        profiles=tuple(
            UnitProfile(
                demand=latency if entry["demand"] is None else entry["demand"],
                memory_bound=entry["memory_bound"],
            )
            for entry, latency in zip(operators, latencies, strict=True)
        ),
    )
