"""Convolutions and linear layers on integers."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from braid.core.attributes import image_window
from braid.core.graph import Operator
from braid.engine.cpu.kernels.integers.rounding import Chain, Rounded, rounded, steps_of_grid
from braid.engine.cpu.kernels.unit_binding import UnitBinding, WithWeights, number
from braid.engine.onednn import integers
from braid.engine.onednn.integers import Types
from braid.engine.onednn.library import (
    BIAS,
    POST_OP,
    SCALES,
    SRC,
    SRC_1,
    WEIGHTS,
    ZERO_POINT,
)
from braid.engine.onednn.recipe import Buffer
from braid.engine.ops.families.quantised_unit import QuantisedUnit
from braid.engine.program.kernel import Kernel
from braid.engine.runtime.arrays import Array

SUMMAND = 3  # position among the operands


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Constants of a unit with weights, as its primitive takes them."""

    weight: Array  # signed, around zero
    factors: Array  # of the sums, by channel
    bias: Array
    zero: int  # of the source; 0 if the bias makes up for it

    @property
    def zeros(self) -> list[int]:
        return [SRC] if self.zero else []

    @property
    def fixed(self) -> Mapping[int, Array]:
        given = {BIAS: self.bias, SCALES | WEIGHTS: self.factors}
        if self.zero:
            given[ZERO_POINT | SRC] = number(self.zero, "INT32")
        return given


def _numbers(
    unit: QuantisedUnit, binding: UnitBinding, chain: Rounded, *, is_padded: bool
) -> _Numbers:
    _, weight_name, bias_name = (*unit.parts.values, "")[:3]
    data, weights = unit.parts.grids[:2]
    assert data is not None
    assert weights is not None
    source, weight = steps_of_grid(data, binding), binding.constants[weight_name]
    scale, shift = chain.chain.first
    factors = source.scale * binding.constants[weights.scale].astype(np.float64).ravel() * scale
    factors = np.broadcast_to(factors, len(weight))
    bias = np.full(len(weight), shift)
    if bias_name:
        bias += binding.constants[bias_name].astype(np.float64) * scale
    zero = int(source.zero)
    if zero and not is_padded:
        bias -= factors * zero * weight.reshape(len(weight), -1).sum(1, dtype=np.int64)
        zero = 0
    return _Numbers(weight, factors.astype(np.float32), bias.astype(np.float32), zero)


def _kernel(
    chain: Rounded,
    describe: Callable[[], WithWeights],
    numbers: _Numbers,
    binding: UnitBinding,
    result: Buffer,
) -> Kernel:
    arguments = {SRC: 0}
    if chain.sum_at is not None:
        arguments[POST_OP * (chain.sum_at + 1) | SRC_1] = SUMMAND
    return binding.kernel(describe, arguments, result, fixed=numbers.fixed)


def types_of(unit: Operator, read: QuantisedUnit, binding: UnitBinding) -> Types:
    result, has_sum = binding.dtype(unit.outputs[0]), read.unit.endswith("_add")
    summand = binding.dtype(unit.inputs[SUMMAND]) if has_sum else result
    return Types(binding.dtype(unit.inputs[0]), result, summand)


def convolution(unit: Operator, read: QuantisedUnit, binding: UnitBinding) -> Kernel | None:
    chain = rounded(read, unit.outputs[0], binding, Chain())
    if chain is None:
        return None
    stride, padding, dilation, groups = image_window(unit)
    numbers = _numbers(read, binding, chain, is_padded=any(padding))
    weight, types = numbers.weight, types_of(unit, read, binding)
    grouped = weight.reshape(groups, -1, *weight.shape[1:]) if groups > 1 else weight
    result, library = binding.shape(unit.outputs[0]), binding.library
    shapes = binding.shape(unit.inputs[0]), grouped.shape, result
    window = stride, dilation, padding

    def describe() -> WithWeights:
        how = window, chain.chain.post_ops, numbers.zeros
        return integers.convolution(library, types, shapes, *how), unit.inputs[1], grouped

    buffer = Buffer(result, images=True, dtype=types.result)
    return _kernel(chain, describe, numbers, binding, buffer)


def linear(unit: Operator, read: QuantisedUnit, binding: UnitBinding) -> Kernel | None:
    chain = rounded(read, unit.outputs[0], binding, Chain())
    if chain is None:
        return None
    numbers = _numbers(read, binding, chain, is_padded=False)
    weight, types, library = numbers.weight, types_of(unit, read, binding), binding.library
    *leading, n = binding.shape(unit.outputs[0])
    m, k = math.prod(leading), weight.shape[1]

    def describe() -> WithWeights:
        primitive = integers.matmul(library, types, m, k, n, chain.chain.post_ops)
        return primitive, f"{unit.inputs[1]}^T", weight.T

    buffer = Buffer((*leading, n), images=False, dtype=types.result)
    return _kernel(chain, describe, numbers, binding, buffer)
