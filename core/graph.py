"""Operator graph: the importer writes it, the passes rewrite it, the planners read it.

One type serves twice. A *template* has symbolic extents (the batch, and any other extent the model
leaves open) and may compute shapes with *host operands*. ``braid.engine.passes.specialise`` turns
it into a *static* graph for given input shapes: every spec static, no host operand, no branch.
After the fusion pass each operator is one *schedule unit*.

    template ──specialise(shapes)──> static graph ──planner──> Schedule ──lower──> StreamPlan

Values are named; operators stand in topological order and each value is produced once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from braid.core.errors import InvalidArtefact
from braid.core.json_form import MalformedJson, from_json, to_json
from braid.core.tensor import TensorType

GRAPH_FORMAT = 1

WEIGHTS = "weights"
"""Attribute that holds numbers of the model, of which only the count matters to speed."""

Literal = None | bool | int | float | str | list[Any]
"""Value of an attribute: JSON, so that a graph is data and never code."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One arm of a conditional: operators that may read any value of the enclosing graph."""

    operators: tuple[Operator, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Operator:
    """One call of an operator kind; after fusion, one schedule unit.

    ``kind`` names an entry of ``braid.engine.ops``: ``aten.*`` where torch has the operator,
    ``braid.*`` where ONNX semantics need a little more.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]  # value names; "" where an optional operand is absent
    outputs: tuple[str, ...]
    attributes: Mapping[str, Literal] = field(default_factory=dict)
    # attribute -> value whose content, read on the host, becomes that attribute (templates only)
    host: Mapping[str, str] = field(default_factory=dict)
    branches: tuple[Branch, ...] = ()  # then, else (templates only)

    def __post_init__(self) -> None:
        if not self.name or not self.kind:
            raise InvalidArtefact("an operator needs a name and a kind")
        if not self.outputs or not all(self.outputs):
            raise InvalidArtefact(f"operator {self.name!r} needs named outputs")

    def attributes_of_speed(self) -> dict[str, Literal]:
        """The attributes; of weights among them, as of weights that are tensors, the shape."""
        attributes = dict(self.attributes)
        if isinstance(weights := attributes.get(WEIGHTS), list):
            attributes[WEIGHTS] = len(weights)
        return attributes

    def reads(self) -> Iterator[str]:
        """Names of all values this operator reads, branches included."""
        yield from (name for name in self.inputs if name)
        yield from self.host.values()
        for branch in self.branches:
            inner = {out for op in branch.operators for out in op.outputs}
            for op in branch.operators:
                yield from (name for name in op.reads() if name not in inner)
            yield from (name for name in branch.outputs if name not in inner)


@dataclass(frozen=True, slots=True)
class OpGraph:
    """Operators in topological order between named inputs and outputs."""

    name: str
    inputs: Mapping[str, TensorType]  # in the model's order
    outputs: Mapping[str, str]  # name the caller sees -> value name
    constants: Mapping[str, TensorType]  # the weights, by value name
    operators: tuple[Operator, ...]
    # of operator outputs; of all of them, if the graph is static
    specs: Mapping[str, TensorType] = field(default_factory=dict)
    # value -> tensors of the model's file that it equals, the latest last; of those that are known
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.operators)

    def producers(self) -> dict[str, int]:
        """Value name -> index of the operator that produces it."""
        return {out: i for i, op in enumerate(self.operators) for out in op.outputs}

    def spec(self, value: str) -> TensorType:
        """Spec of a value of a static graph. Raises KeyError if there is none or it is unknown."""
        for table in (self.specs, self.inputs, self.constants):
            if value in table:
                return table[value]
        raise KeyError(value)

    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """For each operator, the indices of the operators it reads from, ascending."""
        made_by = self.producers()
        return tuple(
            tuple(sorted({made_by[name] for name in op.reads() if name in made_by}))
            for op in self.operators
        )

    def verify(self) -> None:
        """Raise InvalidArtefact, naming the first operator or value that breaks an invariant."""
        sources = [*self.inputs, *self.constants]
        if len(sources) != len(set(sources)):
            raise InvalidArtefact(f"graph {self.name!r}: an input and a constant share a name")
        _verify_operators(self.operators, set(sources), set())
        defined = set(sources).union(*(op.outputs for op in self.operators))
        for name, value in self.outputs.items():
            if value not in defined:
                raise InvalidArtefact(f"output {name!r} names {value!r}, which nothing produces")
        if not self.outputs:
            raise InvalidArtefact(f"graph {self.name!r} has no outputs")


def _verify_operators(operators: Iterable[Operator], defined: set[str], names: set[str]) -> None:
    """Check that operators read earlier values only and that no value or name stands twice."""
    for op in operators:
        for value in op.inputs + tuple(op.host.values()):
            if value and value not in defined:
                raise InvalidArtefact(
                    f"operator {op.name!r} ({op.kind}) reads {value!r}, which nothing before it "
                    "produces"
                )
        if op.name in names:
            raise InvalidArtefact(f"two operators are named {op.name!r}")
        names.add(op.name)
        for branch in op.branches:
            inner = set(defined)
            _verify_operators(branch.operators, inner, names)
            for value in branch.outputs:
                if value not in inner:
                    raise InvalidArtefact(
                        f"a branch of {op.name!r} returns {value!r}, which nothing produces"
                    )
            if len(branch.outputs) != len(op.outputs):
                raise InvalidArtefact(f"the branches of {op.name!r} return different counts")
        for value in op.outputs:
            if value in defined:
                raise InvalidArtefact(f"value {value!r} is produced twice (by {op.name!r})")
            defined.add(value)


def graph_to_json(graph: OpGraph) -> dict[str, Any]:
    values = {*graph.inputs, *(out for op in graph.operators for out in op.outputs)}
    sources = {value: found for value, found in graph.sources.items() if value in values}
    document = to_json(replace(graph, sources=sources))
    operators = [_short(operator) for operator in document["operators"]]
    return {"format": GRAPH_FORMAT, **document, "operators": operators}


def _short(operator: Mapping[str, Any]) -> dict[str, Any]:
    """Document of an operator without what most of them lack, its numbers finite."""
    long = {
        "attributes": {name: _finite(value) for name, value in operator["attributes"].items()},
        "host": operator["host"],
        "branches": [
            {**branch, "operators": [_short(inner) for inner in branch["operators"]]}
            for branch in operator["branches"]
        ],
    }
    left = {name: value for name, value in operator.items() if name not in long}
    return left | {name: value for name, value in long.items() if value}


_NON_FINITE = {"$inf": float("inf"), "$-inf": float("-inf"), "$nan": float("nan")}


def _finite(value: Literal) -> Literal:
    """Replace infinities and NaN, which JSON lacks, by strings that no operator uses."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"${value}"
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value


def _parse_literal(value: Any) -> Literal:
    if isinstance(value, str) and value in _NON_FINITE:
        return _NON_FINITE[value]
    if isinstance(value, list):
        return [_parse_literal(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InvalidArtefact(f"an attribute may not be {type(value).__name__}")


def graph_from_json(document: Any) -> OpGraph:
    """Read and verify a graph; raises InvalidArtefact."""
    if not isinstance(document, dict) or document.get("format") != GRAPH_FORMAT:
        stated = document.get("format") if isinstance(document, dict) else type(document).__name__
        raise InvalidArtefact(
            f"graph format {stated!r} is not {GRAPH_FORMAT}; register the model again"
        )
    try:
        graph = from_json(OpGraph, document)
    except MalformedJson as error:
        raise InvalidArtefact(f"graph.json is malformed: {error}") from error
    graph = replace(graph, operators=tuple(map(_parsed, graph.operators)))
    graph.verify()
    return graph


def _parsed(op: Operator) -> Operator:
    branches = tuple(
        replace(branch, operators=tuple(map(_parsed, branch.operators))) for branch in op.branches
    )
    attributes = {name: _parse_literal(value) for name, value in op.attributes.items()}
    return replace(op, attributes=attributes, branches=branches)


def load_graph(text: str) -> OpGraph:
    """Read a graph from JSON text. Raises InvalidArtefact: not JSON, or not a graph."""
    try:
        document = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidArtefact(f"graph.json is not JSON: {error}") from error
    return graph_from_json(document)
