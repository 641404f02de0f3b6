"""Which kernel runs a unit on integers.

A kernel is given only where the CPU has instructions for sums of 8-bit products (VNNI): elsewhere
static graphs have no such units, and what they quantise runs in FP32.
"""

from collections.abc import Callable, Mapping

from braid.core.graph import Operator
from braid.engine.cpu.device_key import has_integer_kernels
from braid.engine.cpu.kernels.integers import by_data
from braid.engine.cpu.kernels.integers.plain import (
    averaged,
    dequantised,
    quantised,
    regridded,
    summed,
)
from braid.engine.cpu.kernels.integers.weighted import convolution, linear
from braid.engine.cpu.kernels.unit_binding import UnitBinding
from braid.engine.ops.families.quantised_unit import (
    DEQUANTISE,
    IDENTITY,
    KIND,
    QUANTISE,
    QuantisedUnit,
)
from braid.engine.ops.kinds import WEIGHTED_SUM
from braid.engine.program.kernel import Kernel

_UNITS: Mapping[str, Callable[[Operator, QuantisedUnit, UnitBinding], Kernel | None]] = {
    "aten.convolution": convolution,
    "braid.convolution_add": convolution,
    "aten.linear": linear,
    "braid.linear_add": linear,
    "aten.add": summed,
    WEIGHTED_SUM: summed,
    IDENTITY: regridded,
    "braid.avg_pool": averaged,
    "braid.global_avg_pool": averaged,
    "aten.mean": averaged,
}

_SUMS: Mapping[str, Callable[[Operator, UnitBinding], Kernel | None]] = {
    "braid.matmul_integer": by_data.product,
    "braid.convolution_integer": by_data.convolution,
}

KINDS = frozenset({KIND, QUANTISE, DEQUANTISE, *_SUMS})  # read or make 8-bit integers


def bind_on_integers(unit: Operator, binding: UnitBinding) -> Kernel | None:
    if unit.kind == QUANTISE:
        return quantised(unit, binding) or by_data.quantised(unit, binding)
    if unit.kind in _SUMS:
        return _SUMS[unit.kind](unit, binding) if has_integer_kernels() else None
    if unit.kind == DEQUANTISE:
        return dequantised(unit, binding)
    read = QuantisedUnit.read(unit)
    if any(0 in binding.shape(value) for value in (unit.inputs[0], *unit.outputs)):
        return None
    return _UNITS[read.unit](unit, read, binding)
