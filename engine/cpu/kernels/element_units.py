"""Units on elements of any type, outside the interpreter: token ids, masks, tables, reductions.

    unit ──bind_elements──> Kernel on engine/cpu/native/elements.c or vectors.c, or None

oneDNN has none of them. They are small, but a unit that needs the interpreter ends a native segment
(docs/decisions/0017-bursts.md), and takes longer there than its work.
"""

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from braid.core.attributes import whole, wholes
from braid.core.graph import Operator
from braid.core.tensor import DTYPE_BYTES
from braid.engine.cpu.kernels.native_units import VARIANT, words
from braid.engine.cpu.kernels.unit_binding import UnitBinding, View, single
from braid.engine.cpu.native.find import find_native
from braid.engine.onednn.library import DST, MANY, SRC, NativeCall, OneDnn
from braid.engine.onednn.recipe import Action, Buffer, Place, Recipe
from braid.engine.ops.families.shape import normal_axis
from braid.engine.ops.kinds import EPILOGUE
from braid.engine.ops.value_ranges import ValueRange, along_axis, index_tuples
from braid.engine.program.kernel import Kernel
from braid.engine.runtime.arrays import strides_of

_MOST_AXES, _MOST_OPERANDS = 6, 3
_INDICES = 2  # argument of a gather beside SRC

_TYPES = {"BOOL": 0, "UINT8": 1, "INT8": 2, "INT32": 3, "INT64": 4, "FP32": 5}
_OTHER = 6  # of elements that are only moved

_WIDTHS = (1, 2, 4, 8)
_MOST_KEPT = 64  # largest elements: each takes a step to find; torch sorts for more

_TRUTH, _WHOLE = frozenset({"BOOL"}), frozenset({"INT32", "INT64"})
_ORDERED, _COMPARED = _WHOLE | {"FP32"}, frozenset(_TYPES)
_COPY, _NOT, _AND, _OR, _XOR, _WHERE = range(6)
OPERATIONS: Mapping[str, tuple[int, frozenset[str], bool]] = {
    "aten.logical_not": (_NOT, _COMPARED, False),
    "aten.logical_and": (_AND, _COMPARED, False),
    "aten.logical_or": (_OR, _COMPARED, False),
    "aten.logical_xor": (_XOR, _COMPARED, False),
    "aten.eq": (6, _COMPARED, False),
    "aten.lt": (8, _COMPARED, False),
    "aten.le": (9, _COMPARED, False),
    "aten.gt": (8, _COMPARED, True),
    "aten.ge": (9, _COMPARED, True),
    "aten.add": (10, _ORDERED, False),
    "aten.sub": (11, _ORDERED, False),
    "aten.mul": (12, _ORDERED, False),
    "aten.div": (13, frozenset({"FP32"}), False),
    "aten.maximum": (14, _ORDERED, False),
    "aten.minimum": (15, _ORDERED, False),
}
"""Kind -> its code in elements.c, types of its operands, and whether these change places."""

PICKS = ("braid.gather", "braid.gather_elements", "braid.gather_nd")

OF_INTEGERS = frozenset({"truncate"})  # attributes that mean nothing for other numbers

REDUCTIONS = {"aten.sum": 0, "aten.mean": 1, "braid.l2_norm": 2, "aten.amax": 3, "aten.amin": 4}
"""Kind -> its code in vectors.c."""


class _Operand(ctypes.Structure):
    _fields_ = (*words("type", "width", "offset"), ("strides", ctypes.c_int64 * _MOST_AXES))


class _Elements(ctypes.Structure):
    _fields_ = (
        ("data_of", ctypes.c_void_p),
        *words("operation", "axes"),
        ("extents", ctypes.c_int64 * _MOST_AXES),
        *words("operands"),
        ("operand", _Operand * _MOST_OPERANDS),
        *words("type", "width", "step", "threads"),
    )


class _Gather(ctypes.Structure):
    _fields_ = (
        ("data_of", ctypes.c_void_p),
        *words("outer", "depth"),
        ("extents", ctypes.c_int64 * _MOST_AXES),
        *words("inner", "width", "count", "each", "index_bytes", "wraps", "threads"),
        *words("refused", "wrong"),
    )


class _Extremes(ctypes.Structure):
    _fields_ = (
        ("data_of", ctypes.c_void_p),
        *words("outer", "count", "inner", "kept", "type", "least", "is_last", "nan_is_least"),
    )


class _Running(ctypes.Structure):
    _fields_ = (("data_of", ctypes.c_void_p), *words("outer", "count", "inner", "type"))


class _Reduction(ctypes.Structure):
    _fields_ = (
        ("data_of", ctypes.c_void_p),
        *words("kind", "outer", "count", "inner", "threads"),
    )


def bind_elements(unit: Operator, binding: UnitBinding) -> Kernel | None:
    """Kernel in C, without the unit's epilogue; None where it does not fit or nothing was built."""
    native, binder = find_native(), _BINDERS.get(unit.kind)
    if native is None or binder is None or unit.host:
        return None
    if EPILOGUE in unit.attributes and binding.dtype(unit.outputs[0]) != "FP32":
        return None
    if any(0 in binding.shape(name) for name in (*unit.inputs, *unit.outputs)):
        return None
    return binder(unit, binding, native)


def _elementwise(unit: Operator, binding: UnitBinding, native: ctypes.CDLL) -> Kernel | None:
    types = [binding.dtype(name) for name in unit.inputs]
    (result,) = unit.outputs
    target, positions = binding.dtype(result), list(range(len(types)))
    if unit.kind == "braid.cast":
        code = _COPY
        if types[0] not in _TYPES or target not in _TYPES:
            return None
        if types[0] == "FP32" and target not in ("FP32", "BOOL"):
            return None  # beyond the target's range each processor has answers of its own
    elif unit.kind == "aten.where":
        code = _WHERE
        if types[0] not in _TRUTH or {*types[1:]} != {target} or DTYPE_BYTES[target] not in _WIDTHS:
            return None
    else:
        code, allowed, is_turned = OPERATIONS[unit.kind]
        if set(unit.attributes) - OF_INTEGERS - {EPILOGUE} or not allowed.issuperset(types):
            return None
        if len({*types}) > 1 and code not in (_AND, _OR, _XOR):
            return None
        positions = positions[::-1] if is_turned else positions
    shape = binding.shape(result)
    names = [unit.inputs[position] for position in positions]
    layouts = [_repeated(name, shape, binding) for name in names]
    how = code, target, shape, binding.strides(result)
    make = _maker(native, binding.library, layouts, how)
    if make is None:
        return None
    operands = tuple(
        (position, _is_images(name, binding))
        for position, name in zip(positions, names, strict=True)
    )
    places = {MANY + at: Place("operand", at) for at in range(len(names))}
    places[DST] = Place("result", 0)

    def recipe(threads: int) -> Recipe:
        return Recipe((Action(make(threads), {}, places),), operands, (binding.result(result),))

    return Kernel(VARIANT, recipe=recipe)


def copy_of(
    view: View, target: Sequence[int], library: OneDnn, step: int = 1
) -> Callable[[int], NativeCall] | None:
    """Makes a copy of a view for a number of threads; its argument ``MANY`` is the view's memory.

    ``target``: strides of the copy, if it were dense; ``step``: distance of its elements.
    """
    native, dtype = find_native(), view.dtype
    if native is None or DTYPE_BYTES[dtype] not in _WIDTHS:
        return None
    return _maker(native, library, [view], (_COPY, dtype, view.shape, target), step)


def _maker(
    native: ctypes.CDLL,
    library: OneDnn,
    layouts: Sequence[View],
    how: tuple[int, str, tuple[int, ...], Sequence[int]],
    step: int = 1,
) -> Callable[[int], NativeCall] | None:
    """``how``: operation, type, shape and strides of the result; None for too many axes."""
    code, result, shape, order = how
    axes = _axes(shape, order, layouts)
    if len(axes) > _MOST_AXES:
        return None
    operands = [
        _Operand(
            *(_TYPES.get(view.dtype, _OTHER), DTYPE_BYTES[view.dtype], view.offset),
            (ctypes.c_int64 * _MOST_AXES)(*[strides[number] for _, strides in axes]),
        )
        for number, view in enumerate(layouts)
    ]
    extents = (ctypes.c_int64 * _MOST_AXES)(*[extent for extent, _ in axes])

    def make(threads: int) -> NativeCall:
        structure = _Elements(
            *(None, code, len(axes), extents, len(operands)),
            (_Operand * _MOST_OPERANDS)(*operands),
            *(_TYPES.get(result, _OTHER), DTYPE_BYTES[result], step, threads),
        )
        return NativeCall(library, native.braid_elements, structure)

    return make


def _axes(
    shape: Sequence[int], order: Sequence[int], layouts: Sequence[View]
) -> list[tuple[int, list[int]]]:
    """Extents and operands' strides in the result's memory order; joins axes that lie alike."""
    present = [axis for axis, extent in enumerate(shape) if extent > 1]
    joined: list[tuple[int, list[int]]] = []
    for axis in sorted(present, key=lambda axis: -order[axis]):
        extent, steps = shape[axis], [view.strides[axis] for view in layouts]
        if joined and all(
            far == extent * near for far, near in zip(joined[-1][1], steps, strict=True)
        ):
            joined[-1] = joined[-1][0] * extent, steps
        else:
            joined.append((extent, steps))
    return joined or [(1, [0] * len(layouts))]


def _repeated(value: str, shape: tuple[int, ...], binding: UnitBinding) -> View:
    """An operand along the axes of a result; strides are 0 where it is repeated."""
    own, missing = binding.shape(value), len(shape) - len(binding.shape(value))
    strides = strides_of(own, images=_is_images(value, binding))
    steps = [step if extent > 1 else 0 for step, extent in zip(strides, own, strict=True)]
    return View(binding.dtype(value), shape, (*[0] * missing, *steps))


def _is_images(value: str, binding: UnitBinding) -> bool:
    return value not in binding.graph.constants and not binding.lies_dense(value)


class _GatherCall(NativeCall):
    """A gather, which refuses indices that are none."""

    unit: Operator
    values: Sequence[ValueRange]  # that indices of a tuple may be
    structure: _Gather

    def refuse(self) -> None:
        if column := self.structure.refused:
            raise self.values[column - 1].refusal(self.unit, self.structure.wrong)


def _gather(unit: Operator, binding: UnitBinding, native: ctypes.CDLL) -> Kernel | None:
    """Slices of a tensor; of a table, rows; single elements; slices at tuples of indices."""
    shape, places = (binding.shape(name) for name in unit.inputs)
    (data, indices), (result,) = unit.inputs, unit.outputs
    dtype, index_type = binding.dtype(data), binding.dtype(indices)
    size = DTYPE_BYTES[dtype]
    if index_type not in _WHOLE or not shape or size not in _WIDTHS:
        return None
    if not all(binding.lies_dense(name) for name in (indices, result)):
        return None
    wraps = bool(unit.attributes.get("wrap", True))
    axis = normal_axis(whole(unit.attributes.get("axis", 0)), len(shape))
    extents, inner, width = [shape[axis]], 1, math.prod(shape[axis + 1 :]) * size
    count, is_each = math.prod(places), unit.kind == "braid.gather_elements"
    (values,) = along_axis((shape, places), {"axis": axis, "wrap": wraps})
    ranges = [values]
    if is_each:
        if (*places[:axis], *places[axis + 1 :]) != (*shape[:axis], *shape[axis + 1 :]):
            return None
        inner, width, count = math.prod(shape[axis + 1 :]), size, places[axis]
    elif unit.kind == "braid.gather_nd":
        extents = [*shape[: places[-1]]]
        if unit.attributes.get("batch_dims") or not 1 <= len(extents) <= _MOST_AXES:
            return None
        width, count = math.prod(shape[len(extents) :]) * size, count // len(extents)
        ranges = [*index_tuples((shape, places), {})]
    of = (ctypes.c_int64 * _MOST_AXES)(*extents)

    def make(threads: int) -> Recipe:
        structure = _Gather(
            *(None, math.prod(shape[:axis]), len(extents), of, inner, width, count, is_each),
            *(DTYPE_BYTES[index_type], wraps, threads, 0, 0),
        )
        call = _GatherCall(binding.library, native.braid_gather, structure)
        call.unit, call.values = unit, ranges
        at = {SRC: Place("operand", 0), _INDICES: Place("operand", 1), DST: Place("result", 0)}
        operands = (0, _is_images(data, binding)), (1, False)
        recipe = Recipe((Action(call, {}, at),), operands, (binding.result(result),))
        return recipe if copy is None else _behind(copy(threads), recipe, shape, dtype)

    copy = None
    if _is_images(data, binding):
        view = View(dtype, shape, binding.strides(data))
        copy = copy_of(view, strides_of(shape), binding.library)
        if copy is None:
            return None
    return Kernel(VARIANT, recipe=make)


def _behind(copy: NativeCall, recipe: Recipe, shape: Sequence[int], dtype: str) -> Recipe:
    """A recipe of one action on a copy of its first operand; ``shape`` and ``dtype`` are its."""
    between, (action,) = Place("temporary", 0), recipe.actions
    before = Action(copy, {}, {MANY: Place("operand", 0), DST: between})
    after = replace(action, places={**action.places, SRC: between})
    buffer = Buffer((math.prod(shape),), images=False, dtype=dtype)
    return replace(recipe, actions=(before, after), temporaries=(buffer,))


def _extremes(unit: Operator, binding: UnitBinding, native: ctypes.CDLL) -> Kernel | None:
    """The largest or least elements along an axis, or where the first or last of them is."""
    (data,), how = unit.inputs, unit.attributes
    shape, dtype = binding.shape(data), binding.dtype(data)
    if dtype not in _ORDERED or not shape:
        return None
    if not all(binding.lies_dense(name) for name in (data, *unit.outputs)):
        return None
    is_topk = unit.kind == "braid.topk"
    axis = normal_axis(whole(how.get("dim", -1 if is_topk else 0)), len(shape))
    kept, is_argmin = 1, unit.kind == "braid.argmin"
    is_least = is_argmin
    if is_topk:
        kept, is_least = binding.shape(unit.outputs[0])[axis], not how.get("largest", True)
        if kept > _MOST_KEPT or len(unit.outputs) < 2:
            return None
    extents = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    is_last = bool(how.get("select_last"))

    def make(_: int) -> Recipe:
        order = _TYPES[dtype], is_least, is_last, is_argmin
        structure = _Extremes(None, *extents, kept, *order)
        call = NativeCall(binding.library, native.braid_extremes, structure)
        results = [Place("result", number) for number in range(len(unit.outputs))]
        places = dict(zip((MANY, DST), results[::-1], strict=False))
        action = Action(call, {}, {SRC: Place("operand", 0), **places})
        buffers = tuple(binding.result(name) for name in unit.outputs)
        return Recipe((action,), ((0, False),), buffers)

    return Kernel(VARIANT, recipe=make)


def _running_sum(unit: Operator, binding: UnitBinding, native: ctypes.CDLL) -> Kernel | None:
    (data,), (result,) = unit.inputs, unit.outputs
    shape, dtype, how = binding.shape(data), binding.dtype(data), unit.attributes
    given = how["dim"]
    if dtype not in _ORDERED or how.get("exclusive") or how.get("reverse") or not shape:
        return None
    if not (binding.lies_dense(data) and binding.lies_dense(result)):
        return None
    axis = normal_axis(whole(given[0] if isinstance(given, list) else given), len(shape))
    extents = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])

    def make(_: int) -> Recipe:
        structure = _Running(None, *extents, _TYPES[dtype])
        call = NativeCall(binding.library, native.braid_running, structure)
        return single(call, {}, {SRC: 0}, binding.result(result))

    return Kernel(VARIANT, recipe=make)


def _reduction(unit: Operator, binding: UnitBinding, native: ctypes.CDLL) -> Kernel | None:
    """One number of those along axes that lie one after the other, or of a copy where they do."""
    (data,), (result,) = unit.inputs, unit.outputs
    shape, rank = binding.shape(data), len(binding.shape(result))
    if binding.library.dtype != "FP32" or not all(map(binding.is_plain, (data, result))):
        return None
    given = wholes(unit.attributes.get("dims") or [*range(len(shape))])
    if not shape or (not unit.attributes.get("dims") and unit.attributes.get("noop")):
        return None
    dims = {normal_axis(axis, len(shape)) for axis in given}
    if rank < len(shape) and not binding.lies_dense(result):
        return None
    strides, steps = binding.strides(data), binding.strides(result)
    kept = [axis for axis in range(len(shape)) if axis not in dims]
    if rank == len(shape):
        kept.sort(key=lambda axis: -steps[axis])
    order = sorted((a for a, e in enumerate(shape) if e > 1), key=lambda a: -strides[a])
    runs = [(is_in, [*axes]) for is_in, axes in groupby(order, key=lambda axis: axis in dims)]
    places = [at for at, (is_in, _) in enumerate(runs) if is_in]
    left = [axis for is_in, axes in runs for axis in axes if not is_in]
    code, copy, operands = REDUCTIONS[unit.kind], None, ((0, _is_images(data, binding)),)
    if len(places) == 1 and left == [axis for axis in kept if shape[axis] > 1]:
        sizes = [math.prod(shape[axis] for axis in axes) for _, axes in runs]
        at = places[0]
        extents = math.prod(sizes[:at]), sizes[at], math.prod(sizes[at + 1 :])
    else:
        moved = (*kept, *sorted(dims))
        last = View("FP32", tuple(shape[a] for a in moved), tuple(strides[a] for a in moved))
        copy = copy_of(last, strides_of(last.shape), binding.library)
        if copy is None:
            return None
        count = math.prod(shape[axis] for axis in dims)
        extents = math.prod(shape) // count, count, 1

    def make(threads: int) -> Recipe:
        structure = _Reduction(None, code, *extents, threads)
        call = NativeCall(binding.library, native.braid_reduce, structure)
        recipe = replace(single(call, {}, {SRC: 0}, binding.result(result)), operands=operands)
        return recipe if copy is None else _behind(copy(threads), recipe, shape, "FP32")

    return Kernel(VARIANT, recipe=make, needs_finite=code > 2)


_BINDERS: Mapping[str, Callable[[Operator, UnitBinding, ctypes.CDLL], Kernel | None]] = {
    **dict.fromkeys(("braid.cast", "aten.where", *OPERATIONS), _elementwise),
    **dict.fromkeys(PICKS, _gather),
    **dict.fromkeys(("braid.argmax", "braid.argmin", "braid.topk"), _extremes),
    "braid.cumsum": _running_sum,
    **dict.fromkeys(REDUCTIONS, _reduction),
}
