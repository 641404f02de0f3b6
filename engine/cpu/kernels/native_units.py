"""Units on the part in C: attention, softmax, normalisations over rows and over groups of channels.

engine/cpu/native/vectors.c computes them, in FP32.
"""

import ctypes
import math
from collections.abc import Callable, Mapping

import numpy as np

from braid.core.graph import Operator
from braid.engine.cpu.kernels.unit_binding import UnitBinding, single
from braid.engine.cpu.native.find import find_native
from braid.engine.onednn.library import BIAS, MANY, SRC, WEIGHTS, NativeCall, PostOp
from braid.engine.onednn.recipe import Recipe
from braid.engine.ops.families.attention import (
    ATTENTION,
    MASKS,
    MOST_MASKS,
    ROTATE,
    RotatedHeads,
    ViewedAttention,
)
from braid.engine.ops.kinds import EPILOGUE
from braid.engine.program.kernel import Kernel
from braid.engine.runtime.arrays import dtype_of

VARIANT = "native"

_KEYS, _VALUES = 2, 3  # beside SRC, the queries; masks follow MANY; or angles of rotations

_LEAST_ROWS = 12  # queries in registers with the widest vectors, as in vectors.c
_UNEVEN = 1.1  # most work of the busiest thread, of its share, before heads are divided

_ACTIVATIONS: Mapping[tuple[PostOp, ...], int] = {
    (): 0,
    (("relu", 0.0, 0.0),): 1,
    (("swish", 1.0, 0.0),): 2,
}
_LAYER_NORM, _RMS_NORM = range(2)
_SOFTMAXES = {"aten.softmax": 2, "aten.log_softmax": 3}


def words(*names: str) -> list[tuple[str, type]]:
    return [(name, ctypes.c_int64) for name in names]


class _View(ctypes.Structure):
    _fields_ = words("offset", "batch", "head", "row", "column")


class _Mask(ctypes.Structure):
    _fields_ = (*words("kind"), ("fill", ctypes.c_double), ("at", _View))


class _Attention(ctypes.Structure):
    _fields_ = (
        ("data_of", ctypes.c_void_p),
        *words("batches", "heads", "queries", "keys", "width", "value_width"),
        *((name, _View) for name in ("q", "k", "v", "out")),
        ("scale", ctypes.c_double),
        *words("causal", "zero_hidden", "shared", "masks"),
        ("mask", _Mask * MOST_MASKS),
        *words("threads", "parts"),
    )


class _Rows(ctypes.Structure):
    _fields_ = (
        ("data_of", ctypes.c_void_p),
        *words("kind", "rows", "columns"),
        ("eps", ctypes.c_double),
        *words("activation", "threads"),
    )


class _Groups(ctypes.Structure):
    _fields_ = (
        ("data_of", ctypes.c_void_p),
        *words("images", "pixels", "channels", "groups"),
        ("eps", ctypes.c_double),
        *words("activation", "threads"),
    )


class _Rotation(ctypes.Structure):
    _fields_ = (
        ("data_of", ctypes.c_void_p),
        *words("batches", "heads", "length", "width"),
        ("x", _View),
        *words("rotated", "batches_of_angles"),
        ("scale", ctypes.c_double),
        *words("threads"),
    )


def bind_natively(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    native, activation = find_native(), _ACTIVATIONS.get(tuple(steps))
    if native is None or activation is None or binding.library.dtype != "FP32":
        return None
    return NATIVE_KINDS[unit.kind](unit, binding, native, activation)


def _attention(
    unit: Operator, binding: UnitBinding, native: ctypes.CDLL, activation: int
) -> Kernel | None:
    if EPILOGUE in unit.attributes or not binding.lies_dense(unit.outputs[0]):
        return None
    how = ViewedAttention(**unit.attributes)  # type: ignore[arg-type]
    if not all(map(binding.is_plain, unit.inputs[:3])):
        return None
    extents = how.batches, how.heads, how.queries, how.keys, how.width, how.value_width
    views = [_View(*view) for view in (how.q, how.k, how.v, [0, *how.out, 1])]
    masks = [_Mask(MASKS.index(kind), number, _View(*view)) for kind, number, *view in how.masks]
    flags = how.causal, how.zero_hidden, how.shared
    numbers = how.scale, *flags, len(masks), (_Mask * MOST_MASKS)(*masks)

    def make(threads: int) -> Recipe:
        blocks = math.ceil(how.queries / _LEAST_ROWS)
        parts = parts_of(how.batches * how.heads, blocks, threads)
        structure = _Attention(None, *extents, *views, *numbers, threads, parts)
        scratch = native.braid_attention_scratch(ctypes.addressof(structure))
        call = NativeCall(binding.library, native.braid_attention, structure)
        arguments = (SRC, _KEYS, _VALUES, *(MANY + number for number in range(len(masks))))
        places = {argument: at for at, argument in enumerate(arguments)}
        return single(call, {}, places, binding.result(unit.outputs[0]), scratch)

    return Kernel(VARIANT, recipe=make, needs_finite=True)


def parts_of(heads: int, blocks: int, threads: int) -> int:
    """Into how many parts each head's blocks of queries go, so that threads have about as much."""
    for parts in range(1, blocks):
        tasks = heads * parts
        if math.ceil(tasks / threads) * threads <= _UNEVEN * tasks:
            return parts
    return blocks


def _rows(
    unit: Operator, binding: UnitBinding, native: ctypes.CDLL, activation: int
) -> Kernel | None:
    (result,) = unit.outputs
    _, *names = (*unit.inputs, "", "")[:3]
    shape, attributes = binding.shape(result), unit.attributes
    axis = attributes.get("dim" if unit.kind in _SOFTMAXES else "axis")
    if not isinstance(axis, int) or not shape or not binding.lies_dense(result):
        return None
    over, eps = shape[axis:], attributes.get("eps", 0.0)
    weights = [binding.constant(name) if name else None for name in names]
    if any(name and weight is None for name, weight in zip(names, weights, strict=True)):
        return None
    if any(w is not None and (dtype_of(w), w.shape) != ("FP32", over) for w in weights):
        return None
    kind = _LAYER_NORM if unit.kind == "aten.layer_norm" else _RMS_NORM
    if unit.kind in _SOFTMAXES:
        kind = _SOFTMAXES[unit.kind]
        if over[1:].count(1) < len(over) - 1 or activation:
            return None
    columns = math.prod(over)
    fixed = {
        argument: np.ascontiguousarray(weight)
        for argument, weight in zip((WEIGHTS, BIAS), weights, strict=True)
        if weight is not None
    }

    def make(threads: int) -> Recipe:
        structure = _Rows(
            None, kind, math.prod(shape) // columns, columns, eps, activation, threads
        )
        call = NativeCall(binding.library, native.braid_rows, structure)
        return single(call, fixed, {SRC: 0}, binding.result(result))

    return Kernel(VARIANT, recipe=make, needs_finite=unit.kind in _SOFTMAXES or activation > 0)


def _groups(
    unit: Operator, binding: UnitBinding, native: ctypes.CDLL, activation: int
) -> Kernel | None:
    data, *names = unit.inputs
    weights = [binding.constant(name) for name in names]
    shape, eps = binding.shape(data), unit.attributes.get("eps")
    if binding.lies_dense(unit.outputs[0]):
        return _channels(unit, binding, native, activation)
    images, channels, height, width = shape
    groups = unit.attributes.get("groups", channels)
    if any(weight is None or weight.dtype != np.float32 for weight in weights):
        return None
    fixed = {
        argument: np.repeat(weight.reshape(-1), channels // max(1, weight.size))
        for argument, weight in zip((WEIGHTS, BIAS), weights, strict=True)
        if weight is not None
    }

    def make(threads: int) -> Recipe:
        structure = _Groups(
            *(None, images, height * width, channels, groups, eps, activation, threads)
        )
        call = NativeCall(binding.library, native.braid_groups, structure)
        scratch = 2 * channels * images * (threads + 1)
        return single(call, fixed, {SRC: 0}, binding.result(unit.outputs[0]), scratch)

    return Kernel(VARIANT, recipe=make, needs_finite=activation > 0)


def _channels(
    unit: Operator, binding: UnitBinding, native: ctypes.CDLL, activation: int
) -> Kernel | None:
    """Normalisation of each channel of sequences, whose numbers lie side by side."""
    data, *names = unit.inputs
    shape, eps = binding.shape(data), unit.attributes.get("eps")
    weights = [binding.constant(name) for name in names]
    if unit.attributes.get("groups", shape[1]) != shape[1] or not binding.lies_dense(data):
        return None
    for weight, neutral in zip(weights, (1, 0), strict=True):
        if weight is None or not bool((weight == neutral).all()):
            return None

    def make(threads: int) -> Recipe:
        rows, columns = math.prod(shape[:2]), math.prod(shape[2:])
        structure = _Rows(None, _LAYER_NORM, rows, columns, eps, activation, threads)
        call = NativeCall(binding.library, native.braid_rows, structure)
        return single(call, {}, {SRC: 0}, binding.result(unit.outputs[0]))

    return Kernel(VARIANT, recipe=make, needs_finite=activation > 0)


def _rotate(
    unit: Operator, binding: UnitBinding, native: ctypes.CDLL, activation: int
) -> Kernel | None:
    if activation or not binding.lies_dense(unit.outputs[0]):
        return None
    if not all(map(binding.is_plain, unit.inputs)):
        return None
    how = RotatedHeads(**unit.attributes)  # type: ignore[arg-type]
    angles = binding.shape(unit.inputs[1])

    def make(threads: int) -> Recipe:
        structure = _Rotation(
            *(None, *how.shape, _View(*how.view), angles[3], angles[0], how.scale, threads)
        )
        call = NativeCall(binding.library, native.braid_rotate, structure)
        arguments = {SRC: 0, _KEYS: 1, _VALUES: 2}
        return single(call, {}, arguments, binding.result(unit.outputs[0]))

    return Kernel(VARIANT, recipe=make)


NATIVE_KINDS: Mapping[str, Callable[[Operator, UnitBinding, ctypes.CDLL, int], Kernel | None]] = {
    ATTENTION: _attention,
    ROTATE: _rotate,
    **dict.fromkeys(_SOFTMAXES, _rows),
    "aten.layer_norm": _rows,
    "braid.rms_norm": _rows,
    "braid.group_norm": _groups,
    "braid.instance_norm": _groups,
}
