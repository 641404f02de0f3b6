"""Units on integers in a static graph: DQ, an operator and Q become one unit.

    x ─> Q ─> DQ ─> conv + relu ─> Q ─> DQ ─> max pool ─> Q ─> DQ ─> softmax
    x ─> Q ────────> unit(conv) ─────────────> unit(max pool) ──────> DQ ─> softmax

Operators that only move data move integers. Whatever has no unit reads FP32 values, dequantised
where they are needed; so a model computes what its file says, the order of roundings included.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping
from typing import Literal as Choice

from torch import Tensor

from braid.core.graph import WEIGHTS, Operator, OpGraph
from braid.core.tensor import TensorType
from braid.engine.ops.families.quantised_unit import (
    DEQUANTISE,
    IDENTITY,
    QUANTISE,
    Grid,
    Parts,
    QuantisedUnit,
)
from braid.engine.ops.kinds import EPILOGUE, WEIGHTED_SUM
from braid.engine.passes.precision import FOLLOWING, DerivedConstants
from braid.engine.passes.quantised.candidates import AVERAGES, WEIGHTED
from braid.engine.passes.quantised.joining import join_units
from braid.engine.passes.quantised.values import BYTES, Integers, Rewrite, signed_weights


def fuse_quantised(
    graph: OpGraph,
    constants: Mapping[str, Tensor],
    packed: DerivedConstants,
    *,
    on_integers: bool,
) -> tuple[OpGraph, dict[str, Tensor]]:
    """The graph, whose residual sums are fused already, with units on integers, and its constants.

    Without kernels on integers (``on_integers``) weights are dequantised here, and nothing else.
    """
    if not any(op.kind == DEQUANTISE for op in graph.operators):
        return graph, dict(constants)
    rewrite = Rewrite(graph, constants, packed)
    fusing = _Fusing(graph, rewrite)
    for operator in graph.operators:
        if on_integers:
            fusing.take(operator)
        else:
            fusing.take_in_floats(operator)
    fused, kept = rewrite.result()
    return (join_units(fused), kept) if on_integers else (fused, kept)


class _Fusing:
    """State of one rewrite: who reads each value, and the quantisations that units took in."""

    def __init__(self, graph: OpGraph, rewrite: Rewrite) -> None:
        self._to = rewrite
        self._outputs = set(graph.outputs.values())
        self._taken_in: set[str] = set()  # quantisations, by name
        self._readers: dict[str, list[Operator]] = defaultdict(list)
        for op in graph.operators:
            for value in op.inputs:
                self._readers[value].append(op)

    def take_in_floats(self, op: Operator) -> None:
        """Add an operator; weights in integers become constants in floats."""
        if not (op.kind == DEQUANTISE and op.inputs[0] in self._to.constants and self._noted(op)):
            self._plain(op)

    def take(self, op: Operator) -> None:
        if op.name in self._taken_in or (op.kind == DEQUANTISE and self._noted(op)):
            return
        if op.kind == QUANTISE and self._brought_to_grid(op):
            return
        if op.kind in FOLLOWING and op.inputs[0] in self._to.integers:
            self._moved(op)
        elif not self._as_unit(op):
            self._plain(op)

    def _plain(self, op: Operator) -> None:
        inputs = tuple(self._to.wide(name) for name in op.inputs)
        self._to.operators.append(dataclasses.replace(op, inputs=inputs))

    def _noted(self, op: Operator) -> bool:
        """Whether a dequantisation waits until its result is needed in FP32."""
        source, scale, zero = (*op.inputs, "", "")[:3]
        to, axis = self._to, op.attributes.get("axis", 1)
        plain = not op.attributes.get("block") and to.spec(op.outputs[0]).dtype == "FP32"
        if not plain or to.spec(source).dtype not in BYTES or scale not in to.constants:
            return False
        if zero and zero not in to.constants:
            return False
        is_weight = source in to.constants
        if not is_weight and to.grid(scale, zero) is None:
            return False
        assert isinstance(axis, int)
        rank = max(1, len(to.spec(source).shape))
        integers = Integers(to.name(source), Grid(scale, zero), axis % rank if is_weight else 0)
        to.integers[op.outputs[0]] = integers
        return True

    def _brought_to_grid(self, op: Operator) -> bool:
        """Quantise what integers stand for: nothing to do, or a change of their grid."""
        to, integers = self._to, self._to.integers.get(op.inputs[0])
        wanted = self._grid_of(op)
        if integers is None or integers.value in to.constants or wanted is None:
            return False
        (result,) = op.outputs
        if self._fits(integers, wanted, result):
            to.equal(result, integers.value)
        else:
            self._change_grid(op.name, integers, wanted, result)
        return True

    def _fits(self, integers: Integers, wanted: Grid[str], result: str) -> bool:
        """Whether integers are those of a quantisation with this grid and result."""
        dtypes = {self._to.spec(value).dtype for value in (integers.value, result)}
        return len(dtypes) == 1 and self._to.same(integers.grid, wanted)

    def _change_grid(self, name: str, integers: Integers, wanted: Grid[str], result: str) -> None:
        parts = Parts((integers.value,), (integers.grid,), None, wanted)
        unit = QuantisedUnit(IDENTITY, parts, [], [], {})
        self._to.operators.append(unit.operator(name, (result,)))

    def _grid_of(self, op: Operator) -> Grid[str] | None:
        """Grid of a quantisation of a whole tensor to 8 bits; None of any other."""
        _, scale, zero = (*op.inputs, "")[:3]
        is_plain = not op.attributes.get("block") and self._to.spec(op.outputs[0]).dtype in BYTES
        if not is_plain or (not zero and self._to.spec(op.outputs[0]).dtype != "UINT8"):
            return None
        return self._to.grid(scale, zero)

    def _quantisation(self, value: str) -> tuple[Operator, Grid[str]] | None:
        """The only reader of a value, if that quantises it, with its grid."""
        readers = self._readers[value]
        if len(readers) != 1 or value in self._outputs or readers[0].kind != QUANTISE:
            return None
        grid = self._grid_of(readers[0])
        return None if grid is None else (readers[0], grid)

    def _moved(self, op: Operator) -> None:
        """Move integers in the place of what they stand for."""
        to, integers = self._to, self._to.integers[op.inputs[0]]
        if integers.value in to.constants:
            self._plain(op)
            return
        dtype = to.spec(integers.value).dtype
        outputs = []
        for value in op.outputs:
            spec = TensorType(dtype, to.spec(value).shape)
            outputs.append(to.fresh(f"{value}/integers", spec))
            to.integers[value] = Integers(outputs[-1], integers.grid)
        inputs = (integers.value, *map(to.wide, op.inputs[1:]))
        to.operators.append(dataclasses.replace(op, inputs=inputs, outputs=tuple(outputs)))

    def _as_unit(self, op: Operator) -> bool:
        if not op.inputs or op.inputs[0] not in self._to.integers or op.host or op.branches:
            return False
        if op.kind in WEIGHTED:
            return self._weighted(op)
        if op.kind == "braid.max_pool":
            return self._largest(op)
        if op.kind == "aten.cat":
            return self._joined(op)
        if op.kind == "aten.relu":
            return self._function(op)
        together = op.kind in ("aten.add", WEIGHTED_SUM) and self._is_sum(op)
        return (together or op.kind in AVERAGES) and self._unit(op, "needs a grid")

    def _is_sum(self, op: Operator) -> bool:
        shapes = {self._to.spec(value).shape for value in (*op.inputs, *op.outputs)}
        return len(shapes) == 1 and not set(op.attributes) - {EPILOGUE, WEIGHTS}

    def _weighted(self, op: Operator) -> bool:
        """Convolutions and linear layers with weights that are signed around zero."""
        to = self._to
        data, weight, bias = op.inputs[:3] if len(op.inputs) > 2 else (*op.inputs, "")
        integers = to.integers.get(weight)
        if (
            integers is None
            or integers.value not in to.constants
            or op.attributes.get("transposed")
        ):
            return False
        rank = 4 if "convolution" in op.kind else len(to.spec(data).shape)
        if len(to.spec(data).shape) != rank or rank < 2 or (bias and bias not in to.constants):
            return False
        tensor, zero = to.constants[integers.value], to.constants.get(integers.grid.zero)
        signed = signed_weights(tensor, zero)
        several = to.constants[integers.grid.scale].numel() > 1
        if signed is None or (several and integers.axis != 0):
            return False
        value = integers.value
        if signed is not tensor:
            value = to.derived(f"{weight}/signed", value, "signed", signed)
        signed_integers = Integers(value, Grid(integers.grid.scale, ""))
        return self._unit(op, "may give floats", {1: signed_integers})

    def _unit(
        self,
        op: Operator,
        result: Choice["needs a grid", "may give floats"],
        given: Mapping[int, Integers] | None = None,
    ) -> bool:
        to, last = self._to, self._quantisation(op.outputs[0])
        operands = [(given or {}).get(i, to.integers.get(v)) for i, v in enumerate(op.inputs)]
        floats = [i for i, operand in enumerate(operands) if operand is None]
        if result == "needs a grid" and (last is None or floats):
            return False
        values = [
            to.wide(value) if operand is None else operand.value
            for value, operand in zip(op.inputs, operands, strict=True)
        ]
        grids = tuple(None if operand is None else operand.grid for operand in operands)
        name, output = op.name, op.outputs[0]
        if last is not None:
            output = last[0].outputs[0]
            self._taken_in.add(last[0].name)
        parts = Parts(tuple(values), grids, None, None if last is None else last[1])
        attributes = dict(op.attributes)
        after = attributes.pop(EPILOGUE, [])
        assert isinstance(after, list)
        unit = QuantisedUnit(op.kind, parts, [], after, attributes)
        to.operators.append(unit.operator(name, (output,)))
        return True

    def _function(self, op: Operator) -> bool:
        """Add a function of integers that lies before a quantisation as a change of grid."""
        integers, last = self._to.integers[op.inputs[0]], self._quantisation(op.outputs[0])
        if last is None or integers.value in self._to.constants:
            return False
        more = op.attributes.get(EPILOGUE, [])
        assert isinstance(more, list)
        parts = Parts((integers.value,), (integers.grid,), None, last[1])
        unit = QuantisedUnit(IDENTITY, parts, [], [[op.kind], *more], {})
        self._taken_in.add(last[0].name)
        self._to.operators.append(unit.operator(op.name, last[0].outputs))
        return True

    def _largest(self, op: Operator) -> bool:
        """Maximum of windows: of the integers, on their own grid."""
        to, (data,) = self._to, op.inputs
        is_constant = to.integers[data].value in to.constants
        if is_constant or len(to.spec(data).shape) != 4 or EPILOGUE in op.attributes:
            return False
        self._moved(op)
        return True

    def _joined(self, op: Operator) -> bool:
        """Concatenation: parts on one grid, then a copy of integers."""
        to, (value,) = self._to, op.outputs
        parts = [to.integers.get(name) for name in op.inputs]
        last = self._quantisation(value)
        sources = [part for part in parts if part is not None and part.value not in to.constants]
        if len(sources) < len(parts) or EPILOGUE in op.attributes:
            return False
        result, grid = f"{value}/integers", sources[0].grid
        dtype = to.spec(sources[0].value).dtype
        alike = all(self._fits(part, grid, sources[0].value) for part in sources)
        if last is None and not alike:
            return False
        if last is not None:
            grid, dtype = last[1], to.spec(last[0].outputs[0]).dtype
            self._taken_in.add(last[0].name)
        values = [self._on_grid(op, part, grid, dtype) for part in sources]
        if last is None:
            result = to.fresh(result, TensorType(dtype, to.spec(value).shape))
            to.integers[value] = Integers(result, grid)
        else:
            result = last[0].outputs[0]
        to.operators.append(dataclasses.replace(op, inputs=tuple(values), outputs=(result,)))
        return True

    def _on_grid(self, op: Operator, part: Integers, grid: Grid[str], dtype: str) -> str:
        """Integers of one part of a concatenation on the grid of the whole."""
        to, spec = self._to, TensorType(dtype, self._to.spec(part.value).shape)
        if to.spec(part.value).dtype == dtype and to.same(part.grid, grid):
            return part.value
        result = to.fresh(f"{part.value}/{op.name}", spec)
        self._change_grid(result, part, grid, result)
        return result
