"""Unit of rewriting: the operators at the top of a graph or inside a branch.

    OpGraph ──everywhere(rewrite)──> rewrite(Body) for each branch, innermost first, then the top

Names are unique across a graph and its branches, and constants are shared by all of them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from braid.core.graph import Branch, Operator, OpGraph
from braid.core.tensor import TensorType
from braid.engine.ops.dtypes import spec_of
from braid.engine.ops.kinds import OPS

Weights = Mapping[str, Tensor]
Pass = Callable[[OpGraph, Weights], tuple[OpGraph, Weights]]


@dataclass(frozen=True, slots=True)
class Body:
    """Operators in topological order, and results, which a rewrite may name otherwise."""

    operators: tuple[Operator, ...]
    results: tuple[str, ...]
    ranks: Mapping[str, int]  # of the graph's inputs
    top: bool  # False inside a branch

    def reads(self) -> Counter[str]:
        """Number of reads of each value, by operators, their branches and as a result."""
        return Counter(name for op in self.operators for name in op.reads()) + Counter(self.results)

    def renamed(self, names: Mapping[str, str]) -> Body:
        if not names:
            return self
        return dataclasses.replace(
            self,
            operators=tuple(rename_reads(op, names) for op in self.operators),
            results=tuple(names.get(value, value) for value in self.results),
        )


Rewrite = Callable[[Body, dict[str, Tensor]], Body]
"""Returns the new body; may enter new constants into the weights, never change or remove one."""


def everywhere(rewrite: Rewrite, graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """Apply ``rewrite`` to the graph and to every branch inside it."""
    pool = dict(weights)
    ranks = {name: len(spec.shape) for name, spec in graph.inputs.items()}

    def visit(body: Body) -> Body:
        inner = tuple(
            dataclasses.replace(op, branches=tuple(map(visit_branch, op.branches)))
            if op.branches
            else op
            for op in body.operators
        )
        return rewrite(dataclasses.replace(body, operators=inner), pool)

    def visit_branch(branch: Branch) -> Branch:
        body = visit(Body(branch.operators, branch.outputs, ranks, top=False))
        return Branch(body.operators, body.results)

    body = visit(Body(graph.operators, tuple(graph.outputs.values()), ranks, top=True))
    outputs = dict(zip(graph.outputs, body.results, strict=True))
    specs = {name: spec_of(tensor) for name, tensor in pool.items()}
    return rebuilt(
        dataclasses.replace(graph, outputs=outputs, constants=specs), body.operators
    ), pool


def rebuilt(
    graph: OpGraph, operators: Iterable[Operator], specs: Mapping[str, TensorType] | None = None
) -> OpGraph:
    """``graph`` with other operators; specs of values that are gone are dropped."""
    operators = tuple(operators)
    produced = {out for op in operators for out in op.outputs}
    all_specs = graph.specs if specs is None else specs
    specs = {name: spec for name, spec in all_specs.items() if name in produced}
    return dataclasses.replace(graph, operators=operators, specs=specs)


def with_constants(graph: OpGraph, weights: Weights) -> tuple[OpGraph, dict[str, Tensor]]:
    """``graph`` with those of ``weights`` that it reads as its constants, and these."""
    read = {name for op in graph.operators for name in op.reads()} | set(graph.outputs.values())
    kept = {name: tensor for name, tensor in weights.items() if name in read}
    specs = {name: spec_of(tensor) for name, tensor in kept.items()}
    return dataclasses.replace(graph, constants=specs), kept


def live(operators: Sequence[Operator], results: Iterable[str]) -> tuple[Operator, ...]:
    wanted, kept = set(results), []
    for op in reversed(operators):
        if wanted.intersection(op.outputs):
            wanted.update(op.reads())
            kept.append(op)
    return tuple(reversed(kept))


def all_operators(operators: Iterable[Operator]) -> Iterator[Operator]:
    """Operators in order, each followed by those inside its branches."""
    for operator in operators:
        yield operator
        for branch in operator.branches:
            yield from all_operators(branch.operators)


def map_operators(graph: OpGraph, change: Callable[[Operator], Operator]) -> OpGraph:
    """``graph`` with every operator changed by itself, those inside branches included."""

    def visit(op: Operator) -> Operator:
        branches = tuple(
            Branch(tuple(map(visit, branch.operators)), branch.outputs) for branch in op.branches
        )
        return change(dataclasses.replace(op, branches=branches) if branches else op)

    return dataclasses.replace(graph, operators=tuple(map(visit, graph.operators)))


def rename_reads(op: Operator, names: Mapping[str, str]) -> Operator:
    """``op`` reading ``names[v]`` wherever it read ``v``, branches included."""
    if not any(name in names for name in op.reads()):
        return op
    return dataclasses.replace(
        op,
        inputs=tuple(names.get(value, value) for value in op.inputs),
        host={attribute: names.get(value, value) for attribute, value in op.host.items()},
        branches=tuple(
            Branch(
                tuple(rename_reads(inner, names) for inner in branch.operators),
                tuple(names.get(value, value) for value in branch.outputs),
            )
            for branch in op.branches
        ),
    )


def fresh(name: str, taken: Container[str]) -> str:
    while name in taken:
        name += "'"
    return name


def scalar(weights: Weights, name: str) -> float | None:
    """The content of a floating-point constant of one element, at most one axis; else None."""
    tensor = weights.get(name)
    if tensor is None or tensor.numel() != 1 or tensor.dim() > 1 or not tensor.is_floating_point():
        return None
    return float(tensor.item())


_SAME_AS_FIRST = frozenset(
    {
        *("aten.batch_norm", "aten.linear", "aten.layer_norm", "aten.softmax", "aten.cat"),
        *("braid.max_pool", "braid.avg_pool", "braid.global_avg_pool", "braid.global_max_pool"),
        *("braid.lrn", "braid.resize", "braid.pad", "braid.pad_same", "braid.instance_norm"),
        *("braid.group_norm", "braid.slice", "braid.identity", "braid.prelu", "braid.cast"),
        "braid.split",
    }
)
_BROADCAST = frozenset({"aten.add", "aten.sub", "aten.mul", "aten.div"})


def ranks(body: Body, weights: Weights) -> Mapping[str, int]:
    """Rank of each value of ``body`` where it is certain; the others are missing."""
    by_name = dict(body.ranks) | {name: tensor.dim() for name, tensor in weights.items()}
    for op in body.operators:
        first = op.inputs[0] if op.inputs else ""
        rank = by_name.get(first)
        shape = op.attributes.get("shape")
        if op.kind == "aten.convolution":
            rank = by_name.get(op.inputs[1])
        elif op.kind == "braid.reshape":
            rank = len(shape) if isinstance(shape, list) else None
        elif op.kind == "braid.flatten":
            rank = 2
        elif op.kind in _BROADCAST:
            both = [by_name.get(name) for name in op.inputs]
            rank = None if None in both else max(r for r in both if r is not None)
        elif op.kind not in _SAME_AS_FIRST and not (op.kind in OPS and OPS[op.kind].pointwise):
            rank = None
        if rank is not None:
            by_name |= dict.fromkeys(
                op.outputs if op.kind == "braid.split" else op.outputs[:1], rank
            )
    return by_name
