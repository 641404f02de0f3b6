"""How often the loops of a model run, as far as its constants tell.

    initialisers, Constant ──_evaluated──> small constants ──> trip counts, conditions
                                                                └──> reasons against the model

Finds loops that certainly run too often: fixed counts, nested ones multiplied, and conditions that
are always true. Functions must be inlined before. What depends on the inputs is not known here; the
limit of a single run (``sandbox/run_limit.py``) holds for it.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from braid.engine.onnx.structure import subgraphs

MOST_TRIPS = 1 << 20  # of all loops together
_MOST_ELEMENTS = 1024  # of a constant: counts are computed from scalars and shapes
_MOST_EVALUATIONS = 10_000
_ONNX = ("", "ai.onnx")

_EVALUATED = frozenset(
    {
        *("Abs", "Add", "And", "Cast", "Ceil", "Concat", "Constant", "Div", "Equal", "Exp"),
        *("Flatten", "Floor", "Gather", "Greater", "GreaterOrEqual", "Identity", "Less"),
        *("LessOrEqual", "Log", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow"),
        *("ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Round", "Shape"),
        *("Size", "Slice", "Sqrt", "Squeeze", "Sub", "Sum", "Transpose", "Unsqueeze", "Where"),
        "Xor",
    }
)
"""Operators whose results are no larger than their operands broadcast against each other."""

Array = NDArray[np.generic]
Constants = ChainMap[str, Array | None]  # None: the name is another value's in here


def loops_against(model: onnx.ModelProto) -> list[str]:
    """Reasons why loops forbid running a model without local functions; empty if none is known."""
    counter = _Counter(list(model.opset_import))
    trips, _ = counter.count(model.graph, ChainMap())
    if trips > MOST_TRIPS and not counter.reasons:
        counter.reasons.append(f"its loops run more than {MOST_TRIPS} times in all")
    return counter.reasons


@dataclass(slots=True)
class _Counter:
    """Sum of the trips that the loops of a model certainly make, from one walk through it."""

    opsets: Sequence[onnx.OperatorSetIdProto]
    reasons: list[str] = field(default_factory=list)
    evaluations: int = 0

    def count(self, graph: onnx.GraphProto, outer: Constants) -> tuple[int, Constants]:
        """Trips of all loops in one run of a graph, and the constants known inside it."""
        constants = outer.new_child()
        constants.update(_initialisers(graph))
        trips = 0
        for node in graph.node:
            if node.op_type == "Loop" and node.domain in _ONNX:
                trips += self._loop(node, constants)
                continue
            inner = [self.count(graph, _hiding(graph, constants))[0] for graph in subgraphs(node)]
            trips += max(inner, default=0)  # branches: one of them is taken
            value = self._evaluated(node, constants)
            if value is not None:
                constants[node.output[0]] = value
        return trips, constants

    def _loop(self, node: onnx.NodeProto, constants: Constants) -> int:
        """Trips of one loop and those inside it; a condition may end it after the first."""
        name = f"Loop ({node.name or next(iter(node.output), '')})"
        count, condition = [*node.input, "", ""][:2]
        body = next(subgraphs(node), None)
        if body is None or len(body.input) < 2 or not body.output:
            return 0  # ONNX Runtime refuses it
        inside = _hiding(body, constants)
        inside[body.input[1].name] = np.array(True)  # the body runs only while it holds
        inner, after = self.count(body, inside)
        if _is(constants.get(condition), False):
            return 0
        lasts = not condition or (
            _is(constants.get(condition), True) and _is(after.get(body.output[0].name), True)
        )
        if not count and not condition:
            self.reasons.append(f"{name} has neither count nor condition")
        elif not count and lasts:
            self.reasons.append(
                f"{name} never ends: it has no count, and its condition always holds"
            )
        counted = constants.get(count)
        trips = 1
        if lasts and counted is not None and counted.size:
            trips = max(0, int(counted.reshape(-1)[0])) * (1 + inner)
        if trips > MOST_TRIPS:
            self.reasons.append(f"{name} runs more than {MOST_TRIPS} times")
        return trips

    def _evaluated(self, node: onnx.NodeProto, constants: Constants) -> Array | None:
        if node.op_type not in _EVALUATED or node.domain not in _ONNX or len(node.output) != 1:
            return None
        if any(name and constants.get(name) is None for name in node.input):
            return None
        if self.evaluations >= _MOST_EVALUATIONS:
            return None
        self.evaluations += 1
        try:
            return _small(_run(node, constants, self.opsets))
        except Exception:  # whatever onnx's Python kernels raise: then it is not known
            return None


def _hiding(graph: onnx.GraphProto, constants: Constants) -> Constants:
    """Constants outside of a graph, without those that its inputs hide by their names."""
    return constants.new_child({info.name: None for info in graph.input})


def _run(
    node: onnx.NodeProto, constants: Constants, opsets: Sequence[onnx.OperatorSetIdProto]
) -> object:
    names = sorted(set(filter(None, node.input)))
    graph = helper.make_graph(
        [node],
        "constant",
        [helper.make_tensor_value_info(name, 0, None) for name in names],
        [helper.make_tensor_value_info(node.output[0], 0, None)],
    )
    from onnx.reference import ReferenceEvaluator  # 8 MiB: its table of all operator sets

    evaluator = ReferenceEvaluator(helper.make_model(graph, opset_imports=list(opsets)))
    results = evaluator.run(None, {name: constants[name] for name in names})
    assert isinstance(results, list)  # a dict only if it was asked for intermediate results
    return results[0]


def _initialisers(graph: onnx.GraphProto) -> Iterator[tuple[str, Array]]:
    for proto in graph.initializer:
        if np.prod(np.array(proto.dims, dtype=object), initial=1) > _MOST_ELEMENTS:
            continue
        try:
            yield proto.name, numpy_helper.to_array(proto)
        except Exception:  # whatever onnx raises of a malformed tensor; others report it
            continue


def _small(value: object) -> Array | None:
    array = np.asarray(value)
    return array if array.dtype.kind in "biuf" and array.size <= _MOST_ELEMENTS else None


def _is(value: Array | None, wanted: bool) -> bool:
    return value is not None and value.size > 0 and bool(value.reshape(-1)[0]) is wanted
