"""Which operators of a static FP32 graph can compute on 8-bit integers, and which then do.

convolutions, linear layers     wherever their values have ranges
sums, averages, what moves      between those: integers come to them, and are read of them
"""

from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor

from braid.core.graph import WEIGHTS, Operator, OpGraph
from braid.core.quantisation import Quantisation
from braid.engine.ops.kinds import EPILOGUE, WEIGHTED_SUM, epilogue_steps

WEIGHTED = frozenset(
    {"aten.convolution", "braid.convolution_add", "aten.linear", "braid.linear_add"}
)
AVERAGES = frozenset({"braid.avg_pool", "braid.global_avg_pool", "aten.mean"})
JOINING = "aten.cat"
MOVING = frozenset(
    {
        *("braid.reshape", "braid.flatten", "braid.squeeze", "braid.unsqueeze", "braid.slice"),
        *("braid.split", "aten.permute", "aten.select", "braid.max_pool"),
    }
)
_SUMMED = frozenset({"aten.add", WEIGHTED_SUM})
_FUNCTIONS = frozenset(
    {
        *("aten.relu", "aten.sigmoid", "aten.tanh", "aten.silu", "aten.hardswish", "aten.gelu"),
        *("aten.clamp", "aten.leaky_relu", "braid.hardsigmoid", "braid.affine"),
    }
)


def data_operands(op: Operator) -> tuple[str, ...]:
    if op.kind in WEIGHTED:
        return (op.inputs[0], *op.inputs[3:4])
    return op.inputs if op.kind in _SUMMED or op.kind == JOINING else op.inputs[:1]


class Candidates:
    """Operators of a static FP32 graph that can compute on integers."""

    def __init__(self, graph: OpGraph, constants: Mapping[str, Tensor]) -> None:
        self._graph = graph
        self._constants = constants
        self.weighted = frozenset(op.name for op in graph.operators if self._has_weights(op))
        self.others = frozenset(op.name for op in graph.operators if self._is_other(op))

    def values(self) -> frozenset[str]:
        tensors = set[str]()
        for op in self._graph.operators:
            if op.name in self.weighted or op.name in self.others:
                tensors.update(data_operands(op))
            if op.name in self.others:
                tensors.update(op.outputs)
        return frozenset(tensors)

    def _is_fp32(self, op: Operator) -> bool:
        values = (*data_operands(op), *op.outputs)
        are_data = all(value and value not in self._constants for value in values)
        plain = are_data and not op.host and not op.branches
        return plain and all(self._graph.spec(value).dtype == "FP32" for value in values)

    def _has_weights(self, op: Operator) -> bool:
        if op.kind not in WEIGHTED or not self._is_fp32(op) or op.attributes.get("transposed"):
            return False
        weight, bias = (*op.inputs, "")[1:3]
        if weight not in self._constants or (bias and bias not in self._constants):
            return False
        rank = len(self._graph.spec(op.inputs[0]).shape)
        fits = rank == 4 if "convolution" in op.kind else rank >= 2
        return fits and _has_functions(op) and self._constants[weight].dtype == torch.float32

    def _is_other(self, op: Operator) -> bool:
        if not op.inputs or not self._is_fp32(op):
            return False
        if op.kind in MOVING or op.kind == JOINING:
            return EPILOGUE not in op.attributes
        if op.kind == "aten.relu":
            return _has_functions(op)
        if op.kind in _SUMMED:
            shapes = {self._graph.spec(value).shape for value in (*op.inputs, *op.outputs)}
            more = set(op.attributes) - {EPILOGUE, WEIGHTS}
            return len(shapes) == 1 and not more and _has_functions(op)
        return op.kind in AVERAGES and _has_functions(op) and self._averages(op)

    def _averages(self, op: Operator) -> bool:
        """Whether an average is over whole images, or over windows of them."""
        if len(self._graph.spec(op.inputs[0]).shape) != 4:
            return False
        if op.kind == "aten.mean":
            dims = op.attributes.get("dims") or []
            return isinstance(dims, list) and sorted(int(str(d)) % 4 for d in dims) == [2, 3]
        if op.kind == "braid.global_avg_pool":
            return True
        pads, dilation = op.attributes["pads"], op.attributes["dilation"]
        if not isinstance(pads, list) or not isinstance(dilation, list):
            return False
        return set(dilation) == {1} and not op.attributes.get("ceil_mode")


def _counts_padding(op: Operator) -> bool:
    """Whether an average counts zeros around the images, which kernels take for integers 0."""
    pads = op.attributes.get("pads")
    return bool(op.attributes.get("count_padding")) and isinstance(pads, list) and any(pads)


def _has_functions(op: Operator) -> bool:
    steps = epilogue_steps(op.attributes.get(EPILOGUE))
    return all(step.kind in _FUNCTIONS for step, _ in steps)


def on_integers(
    graph: OpGraph, constants: Mapping[str, Tensor], how: Quantisation
) -> frozenset[str]:
    candidates, ranges = Candidates(graph, constants), how.ranges
    weighted = {
        op.name
        for op in graph.operators
        if op.name in candidates.weighted and all(value in ranges for value in data_operands(op))
    }
    between = [
        op
        for op in graph.operators
        if op.name in candidates.others
        and all(value in ranges for value in (*data_operands(op), *op.outputs))
        and not (_counts_padding(op) and ranges[op.inputs[0]][0] < 0)
    ]
    return frozenset(_settled(graph, weighted - set(how.wide), between))


def _settled(graph: OpGraph, chosen: set[str], between: list[Operator]) -> set[str]:
    """Add those of ``between`` to which integers come, and of whose results such are read."""
    chosen = chosen | {op.name for op in between}
    makers = {value: op.name for op in graph.operators for value in op.outputs}
    readers: dict[str, set[str]] = defaultdict(set)
    for op in graph.operators:
        for value in data_operands(op):
            readers[value].add(op.name)

    def is_inside(op: Operator) -> bool:
        come = [makers.get(value) in chosen for value in data_operands(op)]
        comes = all(come) if op.kind in _SUMMED else any(come)
        return comes and any(readers[value] & chosen for value in op.outputs)

    while True:
        lonely = {op.name for op in between if op.name in chosen and not is_inside(op)}
        if not lonely:
            return chosen
        chosen -= lonely
