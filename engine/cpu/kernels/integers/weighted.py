"""Convolutions and linear layers on integers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from braid.core.attributes import image_window
from braid.core.graph import Operator
from braid.engine.cpu.kernels.element_units import type_of
from braid.engine.cpu.kernels.integers.rounding import Chain, Rounded, rounded, steps_of_grid
from braid.engine.cpu.kernels.unit_binding import VARIANT, UnitBinding, single
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
    Primitive,
)
from braid.engine.onednn.recipe import Buffer, Recipe
from braid.engine.ops.families.quantised_unit import QuantisedUnit
from braid.engine.program.kernel import Kernel

SUMMAND = 3  # position among the operands


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Constants of a unit with weights, as its primitive takes them."""

    weight: Tensor  # signed, around zero
    factors: Tensor  # of the sums, by channel
    bias: Tensor
    zero: int  # of the source; 0 if the bias makes up for it

    @property
    def zeros(self) -> list[int]:
        return [SRC] if self.zero else []

    def fixed(self, packed: Tensor) -> Mapping[int, Tensor]:
        given = {WEIGHTS: packed, BIAS: self.bias, SCALES | WEIGHTS: self.factors}
        if self.zero:
            given[ZERO_POINT | SRC] = torch.tensor([self.zero], dtype=torch.int32)
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
    factors = source.scale * binding.constants[weights.scale].double().flatten() * scale
    factors = factors.expand(weight.shape[0])
    bias = torch.full_like(factors, shift)
    if bias_name:
        bias += binding.constants[bias_name].double() * scale
    zero = int(source.zero)
    if zero and not is_padded:
        bias -= factors * zero * weight.flatten(1).sum(1, dtype=torch.int64)
        zero = 0
    return _Numbers(weight, factors.float().contiguous(), bias.float(), zero)


def _kernel(
    chain: Rounded,
    describe: Callable[[], Primitive],
    pack: Callable[[Primitive], Tensor],
    numbers: _Numbers,
    binding: UnitBinding,
    result: Buffer,
) -> Kernel:
    arguments = {SRC: 0}
    if chain.sum_at is not None:
        arguments[POST_OP * (chain.sum_at + 1) | SRC_1] = SUMMAND

    def make(threads: int) -> Recipe:
        with binding.library.threads(threads):
            primitive = describe()
            packed = pack(primitive)
        return single(primitive, numbers.fixed(packed), arguments, result)

    return Kernel(VARIANT, recipe=make)


def _types(unit: Operator, read: QuantisedUnit, binding: UnitBinding) -> Types:
    result, has_sum = type_of(unit.outputs[0], binding), read.unit.endswith("_add")
    summand = type_of(unit.inputs[SUMMAND], binding) if has_sum else result
    return Types(type_of(unit.inputs[0], binding), result, summand)


def convolution(unit: Operator, read: QuantisedUnit, binding: UnitBinding) -> Kernel | None:
    chain = rounded(read, unit.outputs[0], binding, Chain())
    if chain is None:
        return None
    stride, padding, dilation, groups = image_window(unit)
    numbers = _numbers(read, binding, chain, is_padded=any(padding))
    weight, types = numbers.weight, _types(unit, read, binding)
    grouped = weight.reshape(groups, -1, *weight.shape[1:]) if groups > 1 else weight
    result, library = binding.shape(unit.outputs[0]), binding.library
    shapes = binding.shape(unit.inputs[0]), tuple(grouped.shape), result
    window = stride, dilation, padding

    def describe() -> Primitive:
        post_ops = chain.chain.post_ops
        return integers.convolution(library, types, shapes, window, post_ops, numbers.zeros)

    def pack(primitive: Primitive) -> Tensor:
        return binding.packed.for_primitive(library, primitive, unit.inputs[1], grouped)

    buffer = Buffer(result, images=True, dtype=types.result)
    return _kernel(chain, describe, pack, numbers, binding, buffer)


def linear(unit: Operator, read: QuantisedUnit, binding: UnitBinding) -> Kernel | None:
    chain = rounded(read, unit.outputs[0], binding, Chain())
    if chain is None:
        return None
    numbers = _numbers(read, binding, chain, is_padded=False)
    weight, types, library = numbers.weight, _types(unit, read, binding), binding.library
    *leading, n = binding.shape(unit.outputs[0])
    m, k = math.prod(leading), weight.shape[1]

    def describe() -> Primitive:
        return integers.matmul(library, types, m, k, n, chain.chain.post_ops)

    def pack(primitive: Primitive) -> Tensor:
        name = f"{unit.inputs[1]}^T"
        return binding.packed.for_primitive(library, primitive, name, weight.t())

    buffer = Buffer((*leading, n), images=False, dtype=types.result)
    return _kernel(chain, describe, pack, numbers, binding, buffer)
