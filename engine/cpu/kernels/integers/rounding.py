"""Post-operations of a unit on integers: from sums to the numbers that are stored.

A number ``t`` in the chain stands for a real ``r``: ``t = scale * r + shift``. At the start of the
chain, the primitive's own scales and bias apply ``scale`` and ``shift``. Later in the chain, a
change of ``scale`` and ``shift`` costs one multiplication and one addition ("move"):

    conv, relu, Q            scales and bias          nothing, or a limit at the zero point
    conv, Q, DQ, add, Q      scales and bias          clip, round, move, add, move
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from braid.engine.cpu.kernels.epilogues import steps_of
from braid.engine.cpu.kernels.unit_binding import UnitBinding
from braid.engine.onednn.library import ADD, PostOp
from braid.engine.ops.families.quantised_unit import Grid, QuantisedUnit
from braid.engine.runtime.arrays import ARRAY_TYPES

_RELU: list[PostOp] = [("relu", 0.0, 0.0)]


@dataclass(frozen=True, slots=True)
class Steps:
    """Numbers of a grid of a whole tensor: real = scale * (integer - zero)."""

    scale: float
    zero: float


def steps_of_grid(grid: Grid[str], binding: UnitBinding) -> Steps:
    zero = binding.constants[grid.zero].item() if grid.zero else 0.0
    return Steps(float(binding.constants[grid.scale].item()), float(zero))


@dataclass(slots=True)
class Chain:
    """Post-operations, and the affine map that the primitive before them applies."""

    scale: float = 1.0  # t = scale * r + shift, now
    shift: float = 0.0
    is_free: bool = True  # the primitive can apply any map
    first: tuple[float, float] = (1.0, 0.0)  # the map that the primitive applies
    post_ops: list[PostOp] = field(default_factory=list)

    def move(self, scale: float, shift: float) -> None:
        """Let numbers stand for reals in another way."""
        if self.is_free:
            self.first = scale, shift
        elif (scale, shift) != (self.scale, self.shift):
            factor = scale / self.scale
            self.post_ops.append(("linear", factor, shift - self.shift * factor))
        self.scale, self.shift = scale, shift

    def then(self, *post_ops: PostOp) -> None:
        self.post_ops += post_ops
        self.is_free = self.is_free and not post_ops

    def function(self, steps: list[PostOp]) -> None:
        """Apply functions to the reals."""
        if steps:
            self.move(1.0, 0.0)
            self.then(*steps)

    def round(self, grid: Steps, limits: np.iinfo[Any], *, not_negative: bool) -> None:
        self.move(1 / grid.scale, 0.0)
        least = 0.0 if not_negative else limits.min - grid.zero
        self.then(("clip", max(limits.min - grid.zero, least), limits.max - grid.zero))
        self.then(("round", 0.0, 0.0))

    def add(self, grid: Steps) -> int:
        """Add integers on a grid; returns the position of the post-operation."""
        self.move(1 / grid.scale, -grid.zero)
        self.then((ADD, 0.0, 0.0))
        self.shift = 0.0
        return len(self.post_ops) - 1

    def store(self, grid: Steps, limits: np.iinfo[Any], *, not_negative: bool) -> None:
        """Move to the integers of a grid: storing rounds and limits them."""
        self.move(1 / grid.scale, grid.zero)
        if not_negative and grid.zero > limits.min:
            self.then(("clip", grid.zero, limits.max))


@dataclass(frozen=True, slots=True)
class Rounded:
    """Chain of a unit, and the position of the sum in it."""

    chain: Chain
    sum_at: int | None


def rounded(unit: QuantisedUnit, result: str, binding: UnitBinding, chain: Chain) -> Rounded | None:
    """Continue ``chain`` with the steps after the operator; None where oneDNN lacks a function."""
    before, after = steps_of(unit.before), steps_of(unit.after)
    if before is None or after is None:
        return None
    sum_at = None
    if unit.parts.middle is not None:
        grid, relu = steps_of_grid(unit.parts.middle, binding), before == _RELU
        if not relu:
            chain.function(before)
        zero = binding.constants.get(unit.parts.middle.zero)
        limits = np.iinfo(np.uint8 if zero is None else zero.dtype)
        chain.round(grid, limits, not_negative=relu)
    if unit.unit.endswith("_add"):
        summand = unit.parts.grids[3]
        sum_at = chain.add(Steps(1.0, 0.0) if summand is None else steps_of_grid(summand, binding))
    relu = after == _RELU and unit.parts.result is not None
    if not relu:
        chain.function(after)
    if unit.parts.result is None:
        chain.move(1.0, 0.0)
        return Rounded(chain, sum_at)
    limits = np.iinfo(ARRAY_TYPES[binding.graph.spec(result).dtype])
    chain.store(steps_of_grid(unit.parts.result, binding), limits, not_negative=relu)
    return Rounded(chain, sum_at)
