"""Values of a static graph that stand for integers, and what the rewrite has made so far."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from braid.core.graph import Operator, OpGraph
from braid.core.tensor import TensorType
from braid.engine.ops.dtypes import spec_of
from braid.engine.ops.families.quantised import dequantise
from braid.engine.ops.families.quantised_unit import DEQUANTISE, Grid, by_grid
from braid.engine.passes.body import fresh, live, rebuilt, with_constants
from braid.engine.passes.precision import DerivedConstants

BYTES = frozenset({"UINT8", "INT8"})


@dataclass(frozen=True, slots=True)
class Integers:
    """Integers whose dequantisation a value is."""

    value: str
    grid: Grid[str]
    axis: int = 0  # of several scales


class Rewrite:
    """A graph under construction: its operators, and the integers behind its FP32 values."""

    def __init__(
        self, graph: OpGraph, constants: Mapping[str, Tensor], packed: DerivedConstants
    ) -> None:
        self._graph = graph
        self._packed = packed
        self.constants = dict(constants)
        self.operators: list[Operator] = []
        self.integers: dict[str, Integers] = {}  # of FP32 values
        self._specs: dict[str, TensorType] = {**graph.inputs, **graph.constants, **graph.specs}
        self._names: dict[str, str] = {}  # integers that equal others
        self._wide: set[str] = set()  # values with integers that exist in FP32, too
        self._taken = {*self._specs, *(op.name for op in graph.operators)}

    def spec(self, value: str) -> TensorType:
        return self._specs[value]

    def name(self, value: str) -> str:
        return self._names.get(value, value)

    def equal(self, value: str, other: str) -> None:
        self._names[value] = other

    def fresh(self, wish: str, spec: TensorType) -> str:
        name = fresh(wish, self._taken)
        self._taken.add(name)
        self._specs[name] = spec
        return name

    def add_constant(self, wish: str, tensor: Tensor) -> str:
        name = self.fresh(wish, spec_of(tensor))
        self.constants[name] = tensor
        return name

    def wide(self, value: str) -> str:
        """A value in the type that it has in the given graph, made if there are integers only."""
        if value in self._names:
            return self._names[value]
        integers = self.integers.get(value)
        if integers is None or value in self._wide:
            return value
        self._wide.add(value)
        if integers.value in self.constants:
            self._dequantise_constant(value, integers)
            return value
        operands = integers.value, integers.grid.scale, integers.grid.zero
        name = self.fresh(f"{value}/dequantise", self.spec(value))
        self.operators.append(by_grid(DEQUANTISE, name, operands, value, integers.axis))
        return value

    def _dequantise_constant(self, value: str, integers: Integers) -> None:
        source, scale = self.constants[integers.value], self.constants[integers.grid.scale]
        zero = self.constants.get(integers.grid.zero)
        self.constants[value] = self._packed.derived(
            ("dequantise", value),
            source,
            lambda: dequantise(source, scale, zero, axis=integers.axis),
        )

    def derived(self, wish: str, source: str, change: str, tensor: Tensor) -> str:
        """A new constant made of another one, once for all plans of a model."""
        kept = self._packed.derived((change, source), self.constants[source], lambda: tensor)
        return self.add_constant(wish, kept)

    def number(self, value: str) -> float | None:
        tensor = self.constants.get(value)
        return float(tensor.item()) if tensor is not None and tensor.numel() == 1 else None

    def grid(self, scale: str, zero: str) -> Grid[str] | None:
        """Grid of a whole tensor of 8-bit integers; None if that is no constant."""
        factor = self.number(scale)
        is_fp32 = factor is not None and self.spec(scale).dtype == "FP32"
        if not is_fp32 or (zero and self.number(zero) is None):
            return None
        return Grid(scale, zero)

    def same(self, one: Grid[str], other: Grid[str]) -> bool:
        zeros = [self.number(grid.zero) if grid.zero else 0.0 for grid in (one, other)]
        return self.number(one.scale) == self.number(other.scale) and zeros[0] == zeros[1]

    def result(self) -> tuple[OpGraph, dict[str, Tensor]]:
        """The graph, without what its outputs do not need, and the constants it reads."""
        outputs = {name: self.wide(value) for name, value in self._graph.outputs.items()}
        graph = dataclasses.replace(self._graph, outputs=outputs)
        operators = live(self.operators, outputs.values())
        return with_constants(rebuilt(graph, operators, self._specs), self.constants)


def signed_weights(tensor: Tensor, zeros: Tensor | None) -> Tensor | None:
    """Weights as signed integers around zero; None if their zero points do not allow it."""
    zero = None if zeros is None else zeros.to(torch.int32)
    if tensor.dtype == torch.int8:
        return tensor if zero is None or bool((zero == 0).all()) else None
    if tensor.dtype != torch.uint8 or zero is None or not bool((zero == 128).all()):
        return None
    return (tensor.to(torch.int16) - 128).to(torch.int8)
