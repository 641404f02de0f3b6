"""Units on integers whose grids are found in the data: sums of products, and quantisation.

    x ─> least, largest ─> scale, zero point ─> quantise ─> sums (MatMulInteger, ConvInteger)

A scale or zero point that is a value of the graph is an operand: the kernel brings it to the type
that the primitive takes, in an action before it.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np

from braid.core.attributes import image_window
from braid.core.graph import Operator
from braid.engine.cpu.kernels.unit_binding import VARIANT, UnitBinding
from braid.engine.onednn import floats, integer_sums
from braid.engine.onednn.library import (
    DST,
    POST_OP,
    SRC,
    SRC_1,
    WEIGHTS,
    ZERO_POINT,
    OneDnn,
    Primitive,
)
from braid.engine.onednn.recipe import Action, Buffer, Place, Recipe
from braid.engine.ops.dtypes import array_of, tensor_of
from braid.engine.passes.quantised.values import signed_weights
from braid.engine.program.kernel import Kernel
from braid.engine.runtime.arrays import Array

_BYTES = ("UINT8", "INT8")


def product(unit: Operator, binding: UnitBinding) -> Kernel | None:
    weight, zero = _weights(unit, binding), _zero(unit.inputs[2:3], binding)
    source, result = binding.shape(unit.inputs[0]), binding.shape(unit.outputs[0])
    if weight is None or zero is None or weight.ndim != 2 or len(source) < 2 or 0 in source:
        return None
    m, (k, n), library = math.prod(source[:-1]), weight.shape, binding.library
    dtype = binding.dtype(unit.inputs[0])

    def describe() -> Primitive:
        return integer_sums.matmul(library, dtype, m, k, n)

    buffer = Buffer(result, images=False, dtype="INT32")
    return _sums(unit, binding, (describe, weight, zero), buffer)


def convolution(unit: Operator, binding: UnitBinding) -> Kernel | None:
    weight, zero = _weights(unit, binding), _zero(unit.inputs[2:3], binding)
    source, result = binding.shape(unit.inputs[0]), binding.shape(unit.outputs[0])
    if weight is None or zero is None or len(source) != 4 or 0 in source:
        return None
    stride, padding, dilation, groups = image_window(unit)
    grouped = weight.reshape(groups, -1, *weight.shape[1:]) if groups > 1 else weight
    shapes, library = (source, grouped.shape, result), binding.library
    dtype = binding.dtype(unit.inputs[0])

    def describe() -> Primitive:
        return integer_sums.convolution(library, dtype, shapes, (stride, dilation, padding))

    buffer = Buffer(result, images=True, dtype="INT32")
    return _sums(unit, binding, (describe, grouped, zero), buffer)


def _weights(unit: Operator, binding: UnitBinding) -> Array | None:
    """Signed weights around zero; None if they are something else, or computed."""
    given, name = binding.constants.get(unit.inputs[1]), (*unit.inputs, "", "")[3]
    zeros = binding.constants.get(name)
    if given is None or (name and zeros is None) or 0 in given.shape:
        return None
    if binding.dtype(unit.inputs[0]) not in _BYTES:
        return None
    signed = signed_weights(tensor_of(given), None if zeros is None else tensor_of(zeros))
    return None if signed is None else array_of(signed)


def _zero(given: tuple[str, ...], binding: UnitBinding) -> Array | str | None:
    """Zero point of the data: a constant, or the name of a value; None for several."""
    name = given[0] if given else ""
    if not name:
        return np.zeros(1, np.int32)
    if math.prod(binding.shape(name)) != 1:
        return None
    constant = binding.constants.get(name)
    return name if constant is None else constant.reshape(1).astype(np.int32)


def _sums(
    unit: Operator,
    binding: UnitBinding,
    parts: tuple[Callable[[], Primitive], Array, Array | str],
    result: Buffer,
) -> Kernel:
    describe, weight, zero = parts
    library, name = binding.library, unit.inputs[1]
    if not isinstance(zero, str):
        fixed = {ZERO_POINT | SRC: zero}
        return binding.kernel(lambda: (describe(), name, weight), {SRC: 0}, result, fixed=fixed)
    operands = (0, result.images), (2, False)
    places = {SRC: Place("operand", 0), DST: Place("result", 0)}
    places |= {ZERO_POINT | SRC: Place("temporary", 0)}

    def make(threads: int) -> Recipe:
        with library.threads(threads):
            primitive = describe()
            packed = binding.packed.for_primitive(library, primitive, name, weight)
            cast = _as_number(library, binding.dtype(zero), "INT32")
        actions = cast, Action(primitive, {WEIGHTS: packed}, places)
        return Recipe(actions, operands, (result,), (_number("INT32"),))

    return Kernel(VARIANT, recipe=make)


def quantised(unit: Operator, binding: UnitBinding) -> Kernel | None:
    data, scale, zero = (*unit.inputs, "")[:3]
    shape, result = binding.shape(data), binding.dtype(unit.outputs[0])
    numbers = [name for name in (scale, zero) if name and math.prod(binding.shape(name)) == 1]
    floats = {binding.dtype(name) for name in (data, scale)}
    if len(numbers) < 2 or floats != {"FP32"} or result not in _BYTES or 0 in shape:
        return None
    if unit.attributes.get("block") or set(numbers) & set(binding.constants):
        return None
    library, is_image = binding.library, len(shape) == 4 and unit.outputs[0] in binding.images
    places: Mapping[int, Place] = {
        SRC: Place("operand", 0),
        SRC_1: Place("operand", 1),
        POST_OP * 2 | SRC_1: Place("temporary", 0),
        DST: Place("result", 0),
    }

    def make(threads: int) -> Recipe:
        with library.threads(threads):
            primitive = integer_sums.quantise(library, result, math.prod(shape))
            cast = _as_number(library, result, "FP32", operand=2)
        operands = ((0, is_image), (1, False), (2, False))
        buffer = Buffer(shape, is_image, dtype=result)
        actions = cast, Action(primitive, {}, places)
        return Recipe(actions, operands, (buffer,), (_number("FP32"),))

    return Kernel(VARIANT, recipe=make, needs_finite=True)


def _as_number(library: OneDnn, source: str, target: str, operand: int = 1) -> Action:
    primitive = floats.cast(library.on(target), 1, source)
    return Action(primitive, {}, {SRC: Place("operand", operand), DST: Place("temporary", 0)})


def _number(dtype: str) -> Buffer:
    return Buffer((1,), images=False, dtype=dtype)
