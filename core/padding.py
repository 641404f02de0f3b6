"""Padding of requests along an axis that a model leaves open, where a registration asks for it.

    length 5 ──pad(to 8)──> 8 ──model──> outputs of 8 ──cut(to 5)──> as of 5

``braid.engine.importer.padding`` measures a ``PaddedAxis`` for each axis; what fills batches pads
and cuts by it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from braid.core.errors import InvalidRequest
from braid.core.inputs import GivenTensor, ShapeClass
from braid.core.strings import Strings
from braid.core.tensor import DTYPE_BYTES, TensorType

ZEROS = "zeros"
MASK = "mask"
"""Zeros that hide positions; a request must have a one at the first position of each row."""
REPEAT = "repeat"
"""Copies of the last position."""

BY_REQUEST = "request"
"""A registration asked for it, and trials agreed. Earlier imports also say how they showed it."""

_ONES: Mapping[str, bytes] = {
    "BF16": b"\x80\x3f",
    "FP16": b"\x00\x3c",
    "FP32": b"\x00\x00\x80\x3f",
    "FP64": b"\x00\x00\x00\x00\x00\x00\xf0\x3f",
}

LEAST_SAVED = 0.02
"""Part of a request's time that padding to a scheduled shape must save."""

MOST_PADDING = 0.5
"""Part of a scheduled shape that may be padding where nothing runs other shapes at once."""

Bytes = bytes | memoryview


@dataclass(frozen=True, slots=True)
class PaddedInput:
    """Dimension of an input along an open axis, and what follows the request's content there."""

    dimension: int
    way: str  # ZEROS, MASK or REPEAT


@dataclass(frozen=True, slots=True)
class PaddedAxis:
    """Whether requests may be longer along an open axis than what they hold, and how."""

    axis: str  # symbol in the specs of the model's inputs
    exact: bool  # of an import: false, but of an earlier version that showed it
    inputs: Mapping[str, PaddedInput]  # those that have the axis
    outputs: Mapping[str, int]  # output -> dimension to cut; the others do not have the axis
    up_to: int  # extents that were looked at
    error: float  # the largest of the trials, relative to the largest element of an output
    shown_by: str  # BY_REQUEST; "": not exact
    reason: str  # why it is not exact; "" if it is
    tried: Mapping[str, float] = field(default_factory=dict)
    # of an axis that is not exact: way -> the largest error of trials in which all inputs go so

    def text(self) -> str:
        if not self.exact:
            return f"{self.axis}: not padded: {self.reason}"
        ways = ", ".join(f"{name} by {part.way}" for name, part in self.inputs.items())
        return (
            f"{self.axis}: padding is exact up to {self.up_to} ({ways}; by {self.shown_by}, "
            f"error {self.error:.1e})"
        )


def as_asked(
    axes: Sequence[PaddedAxis], ways: Mapping[str, str], tolerance: float, *, is_forbidden: bool
) -> tuple[PaddedAxis, ...]:
    """Return the verdicts of an import as a registration changes them.

    ``ways``: axis -> how all inputs are padded along it. Raises InvalidRequest: there is no such
    axis, or trials were not within ``tolerance``.
    """
    if is_forbidden:
        return refused(axes, "forbidden at registration")
    if unknown := sorted(ways.keys() - {axis.axis for axis in axes}):
        there = ", ".join(axis.axis for axis in axes) or "none"
        raise InvalidRequest(
            f"pad names {', '.join(unknown)}; axes looked at in the import: {there}"
        )
    return tuple(_as_asked(axis, ways.get(axis.axis), tolerance) for axis in axes)


def refused(axes: Sequence[PaddedAxis], reason: str) -> tuple[PaddedAxis, ...]:
    return tuple(replace(axis, exact=False, shown_by="", reason=reason) for axis in axes)


def _as_asked(axis: PaddedAxis, way: str | None, tolerance: float) -> PaddedAxis:
    if way is None or (axis.exact and way == ZEROS):
        return axis
    error = axis.tried.get(way)
    if error is None or error > tolerance:
        found = "ran in no trial" if error is None else f"has an error of {error:.2g} in trials"
        raise InvalidRequest(
            f"padding {axis.axis!r} by {way} {found} (at most {tolerance:g}); {axis.reason}"
        )
    inputs = axis.inputs
    if way == REPEAT:  # of zeros, the import has found which are a mask's
        inputs = {name: replace(part, way=REPEAT) for name, part in inputs.items()}
    return replace(axis, exact=True, inputs=inputs, error=error, shown_by=BY_REQUEST, reason="")


def length_of(shape_class: ShapeClass, axis: PaddedAxis) -> int:
    return next(
        int(spec.shape[axis.inputs[name].dimension])
        for name, spec in shape_class.inputs
        if name in axis.inputs
    )


def at_length(shape_class: ShapeClass, axis: PaddedAxis, length: int) -> ShapeClass:
    """Return the class that differs in its extent along an axis only."""

    def longer(name: str, spec: TensorType) -> TensorType:
        if name not in axis.inputs:
            return spec
        at = axis.inputs[name].dimension
        return TensorType(spec.dtype, (*spec.shape[:at], length, *spec.shape[at + 1 :]))

    inputs = tuple((name, longer(name, spec)) for name, spec in shape_class.inputs)
    return ShapeClass(inputs, shape_class.static)


def takes(inputs: Sequence[GivenTensor], axis: PaddedAxis) -> bool:
    """Whether padding these inputs is exact: every row of a mask begins with a one."""
    return axis.exact and all(
        _begins_with_ones(tensor, axis.inputs[tensor.name].dimension)
        for tensor in inputs
        if tensor.name in axis.inputs and axis.inputs[tensor.name].way == MASK
    )


def _begins_with_ones(tensor: GivenTensor, dimension: int) -> bool:
    size = DTYPE_BYTES[tensor.dtype]
    one = _ONES.get(tensor.dtype) or (1).to_bytes(size, "little")
    outer, extent, inner = _steps(tensor.shape, dimension, tensor.dtype)
    data = memoryview(_bytes(tensor))
    return extent > 0 and all(
        data[row * extent * inner : row * extent * inner + inner] == one * (inner // size)
        for row in range(outer)
    )


def pad(inputs: Sequence[GivenTensor], axis: PaddedAxis, to: int) -> list[GivenTensor]:
    """Return checked inputs with ``to`` positions along the axis, no fewer than they have.

    ``axis`` may be inexact: the caller decides, see ``takes``.
    """
    return [
        _padded(tensor, axis.inputs[tensor.name], to) if tensor.name in axis.inputs else tensor
        for tensor in inputs
    ]


def _padded(tensor: GivenTensor, how: PaddedInput, to: int) -> GivenTensor:
    outer, extent, inner = _steps(tensor.shape, how.dimension, tensor.dtype)
    missing = to - extent
    assert missing >= 0, f"{tensor.name!r} has {extent} positions, more than {to}"
    data, step = memoryview(_bytes(tensor)), extent * inner
    parts = list[Bytes]()
    for end in range(step, outer * step + 1, step) if step else ():
        last = data[end - inner : end] if how.way == REPEAT else bytes(inner)
        parts += data[end - step : end], bytes(last) * missing
    shape = (*tensor.shape[: how.dimension], to, *tensor.shape[how.dimension + 1 :])
    return replace(tensor, shape=shape, data=b"".join(parts))


def cut(
    outputs: Mapping[str, tuple[TensorType, Bytes]], axis: PaddedAxis, length: int
) -> dict[str, tuple[TensorType, Bytes]]:
    """Return the first ``length`` positions along the axis of the outputs that have it."""
    return {
        name: _cut(*output, axis.outputs[name], length) if name in axis.outputs else output
        for name, output in outputs.items()
    }


def _cut(spec: TensorType, data: Bytes, dimension: int, length: int) -> tuple[TensorType, Bytes]:
    shape = tuple(int(extent) for extent in spec.shape)
    outer, extent, inner = _steps(shape, dimension, spec.dtype)
    view, step = memoryview(data), extent * inner
    kept = b"".join(view[row * step : row * step + length * inner] for row in range(outer))
    return TensorType(spec.dtype, (*shape[:dimension], length, *shape[dimension + 1 :])), kept


def _steps(shape: Sequence[int], dimension: int, dtype: str) -> tuple[int, int, int]:
    """Rows before a dimension, its extent, bytes of one position."""
    inner = math.prod(shape[dimension + 1 :]) * DTYPE_BYTES[dtype]
    return math.prod(shape[:dimension]), shape[dimension], inner


def _bytes(tensor: GivenTensor) -> Bytes:
    assert not isinstance(tensor.data, Strings), "strings are not padded"
    return tensor.data if isinstance(tensor.data, bytes | memoryview) else bytes(tensor.data)
