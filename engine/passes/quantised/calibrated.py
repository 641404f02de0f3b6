"""A static FP32 graph with quantisations where calibration says so, for ``fuse_quantised``.

    x ─> conv + relu ─> max pool ─> conv ─> y
    x ─> Q ─> DQ ─> conv + relu ─> Q ─> DQ ─> max pool ─> conv ─> y      weights: s8 ─> DQ

Values that are only moved or joined lie on one grid with what they are made of. Activations are
unsigned, weights signed around zero; biases and the graph's inputs and outputs stay FP32. What
reads a value that only exists as integers reads it dequantised.
"""

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from braid.core.graph import Operator, OpGraph
from braid.core.quantisation import Quantisation, Shift
from braid.core.tensor import TensorType
from braid.engine.ops.families.quantised_unit import DEQUANTISE, QUANTISE, by_grid
from braid.engine.passes.body import rebuilt, with_constants
from braid.engine.passes.precision import DerivedConstants
from braid.engine.passes.quantised.candidates import (
    JOINING,
    MOVING,
    WEIGHTED,
    data_operands,
    on_integers,
)

_LEVELS = 255


def quantised_by(
    graph: OpGraph, constants: Mapping[str, Tensor], how: Quantisation, packed: DerivedConstants
) -> tuple[OpGraph, dict[str, Tensor]]:
    """Residual sums are fused already; ``packed`` keeps the weights that were quantised."""
    inserting = _Inserting(graph, constants, how, packed)
    for name in graph.inputs:
        inserting.round_value(name)
    for op in graph.operators:
        inserting.take(op)
    return inserting.result()


class _Inserting:
    """State of one rewrite: operators so far, and the integers that stand for values."""

    def __init__(
        self,
        graph: OpGraph,
        constants: Mapping[str, Tensor],
        how: Quantisation,
        packed: DerivedConstants,
    ) -> None:
        self._graph = graph
        self._packed = packed
        self._chosen = on_integers(graph, constants, how)
        self._shifts = how.shifts
        self._ranges = _joint_ranges(graph, self._chosen, how.ranges)
        self._constants = dict(constants)
        self._operators: list[Operator] = []
        self._specs = dict(graph.specs)
        self._rounded: dict[str, str] = {}  # value -> the same, rounded to its grid
        self._by_integers: set[str] = set()  # values whose makers compute on integers
        self._wanted = {
            value
            for op in graph.operators
            if op.name in self._chosen
            for value in data_operands(op)
        }

    def take(self, op: Operator) -> None:
        chosen = op.name in self._chosen
        data = set(data_operands(op)) if chosen else set()
        inputs = tuple(self._operand(name, as_integers=name in data) for name in op.inputs)
        if chosen and op.kind in WEIGHTED:
            inputs = (inputs[0], self._weight(op.inputs[1]), self._bias(op), *inputs[3:])
        self._operators.append(dataclasses.replace(op, inputs=inputs))
        for value in op.outputs:
            if chosen:
                self._by_integers.add(value)
            keeps_grid = op.kind in MOVING or op.kind == JOINING
            if not (chosen and keeps_grid):
                self.round_value(value)

    def round_value(self, value: str) -> None:
        """Quantise a value that was just made, if integers are wanted of it."""
        if value not in self._wanted:
            return
        scale, zero = self._grid(value)
        integers, rounded = f"{value}:u8", f"{value}:rounded"
        spec = self._graph.spec(value)
        self._specs[integers] = TensorType("UINT8", spec.shape)
        self._specs[rounded] = spec
        quantised = f"{value}/quantise"
        self._operators += [
            by_grid(QUANTISE, quantised, (value, scale, zero), integers),
            by_grid(DEQUANTISE, rounded, (integers, scale, zero), rounded),
        ]
        self._rounded[value] = rounded

    def _operand(self, value: str, *, as_integers: bool) -> str:
        if as_integers or value in self._by_integers:
            return self._rounded.get(value, value)
        return value

    def _grid(self, value: str) -> tuple[str, str]:
        least, most = self._ranges[value]
        scale, zero = grid_of(least, most)
        names = f"{value}:scale", f"{value}:zero"
        self._constants[names[0]] = torch.tensor(scale, dtype=torch.float32)
        self._constants[names[1]] = torch.tensor(zero, dtype=torch.uint8)
        return names

    def _weight(self, name: str) -> str:
        rounded, integers, scales = f"{name}:rounded", f"{name}:s8", f"{name}:scales"
        if rounded in self._specs:
            return rounded
        source = self._constants[name]
        factors = self._packed.derived(("scales", name), source, lambda: weight_scales(source))
        self._constants[scales] = factors
        self._constants[integers] = self._packed.derived(
            ("s8", name), source, lambda: rounded_weights(source, factors)
        )
        self._specs[rounded] = self._graph.spec(name)
        self._operators.append(by_grid(DEQUANTISE, rounded, (integers, scales), rounded, axis=0))
        return rounded

    def _bias(self, op: Operator) -> str:
        """Bias of a unit with weights, less the mean of what rounding adds."""
        bias = (*op.inputs, "")[2]
        if op.name not in self._shifts:
            return bias
        weight, corrected = self._constants[op.inputs[1]], f"{op.name}:bias"
        usual = self._constants[bias] if bias else torch.zeros(weight.shape[0])
        self._constants[corrected] = corrected_bias(usual, self._shifts[op.name])
        return corrected

    def result(self) -> tuple[OpGraph, dict[str, Tensor]]:
        return with_constants(rebuilt(self._graph, self._operators, self._specs), self._constants)


def grid_of(least: float, most: float) -> tuple[float, int]:
    """Scale and zero point of unsigned bytes over a range, which holds zero exactly."""
    least, most = min(least, 0.0), max(most, 0.0)
    scale = float(torch.tensor((most - least) / _LEVELS, dtype=torch.float32))
    if not 0 < scale < float("inf"):
        return 1.0, 0
    return scale, min(_LEVELS, max(0, round(-least / scale)))


def weight_scales(weight: Tensor) -> Tensor:
    """Scales of signed weights, one an output channel."""
    largest = weight.flatten(1).abs().amax(1) / 127
    return torch.where(largest > 0, largest, torch.ones_like(largest))


def rounded_weights(weight: Tensor, scales: Tensor) -> Tensor:
    by_channel = scales.reshape(-1, *[1] * (weight.dim() - 1))
    return torch.round(weight / by_channel).clamp(-127, 127).to(torch.int8)


def shift_of(means: Tensor) -> Shift:
    step = float(means.abs().max()) / 127
    if not 0 < step < float("inf"):
        return Shift(0.0, bytes(len(means)))
    return Shift(step, torch.round(means / step).to(torch.int8).numpy().tobytes())


def corrected_bias(bias: Tensor, shift: Shift) -> Tensor:
    steps = torch.frombuffer(bytearray(shift.steps), dtype=torch.int8)
    return bias - shift.step * steps.to(bias.dtype)


def _joint_ranges(
    graph: OpGraph, chosen: frozenset[str], ranges: Mapping[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    """Ranges of values; those that are only moved or joined get that of all of them."""
    parent: dict[str, str] = {}

    def root(value: str) -> str:
        while (above := parent.get(value, value)) != value:
            value = above
        return value

    for op in graph.operators:
        if op.name in chosen and (op.kind in MOVING or op.kind == JOINING):
            for value in (*data_operands(op), *op.outputs):
                parent[root(value)] = root(op.outputs[0])
    joint: dict[str, tuple[float, float]] = {}
    for value, (least, most) in ranges.items():
        joined = joint.get(root(value), (least, most))
        joint[root(value)] = min(joined[0], least), max(joined[1], most)
    return {value: joint[root(value)] for value in ranges}
