"""Whether OpenVINO computes a model as ONNX defines it, in FP32 and on which integers.

Its CPU plugin moves 64-bit integers in 32 bits, compares many and sums some in FP32, computes FP64
in FP32, and takes an index out of range for a row of zeros, where ONNX Runtime and Braid's own
plans refuse it. Measured errors would not tell: they are of one input, with small integers. So the
range of every integer is followed from the inputs on (``integer_ranges``), and inputs are checked
against the bounds that follow. FP16 and BF16 are computed in FP32, as Braid's own plans do. A
quantised model would be computed in INT8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Tensor

from braid.core.errors import PreconditionFailed
from braid.engine.program.integer_ranges import (
    ALL,
    BINARY,
    BOOLEAN,
    UNARY,
    Range,
    Step,
    Transfer,
    constant,
    content_range,
    hull,
    of_operand,
    quotients,
    reduced_count,
    summed,
    truncated,
    widest_inputs,
)

INT32: Range = (-(1 << 31), (1 << 31) - 1)
_NATURAL: Range = (0, (1 << 31) - 1)
_HELD: Mapping[str, Range] = {
    "i8": (-128, 127), "u8": (0, 255),
    "i16": (-(1 << 15), (1 << 15) - 1), "u16": (0, (1 << 16) - 1),
    "i32": INT32, "u32": _NATURAL, "i64": INT32, "u64": _NATURAL,
}  # fmt: skip
"""Numbers that OpenVINO's CPU plugin holds in an element type of the model."""

_EXACT: Range = (-(1 << 24), 1 << 24)  # integers that FP32 holds, in which some kinds compute

_TO_32_BITS: Range = (-(1 << 31) + 256, (1 << 31) - 256)
"""Floats that may become integers; rounding of FP32 cannot move these out of 32 bits."""

_QUANTISED = frozenset({"FakeQuantize", "FakeConvert"})
_FOLLOWED_FLOATS = 4096  # elements of a constant of floats, at most
_ALL_OPERANDS = (*range(1 << 10),)  # of Concat

_MOVES: Mapping[str, tuple[int, ...]] = {
    "Result": (0,), "Reshape": (0,), "Squeeze": (0,), "Unsqueeze": (0,), "Transpose": (0,),
    "Broadcast": (0,), "Tile": (0,), "Slice": (0,), "StridedSlice": (0,), "Split": (0,),
    "VariadicSplit": (0,), "Concat": _ALL_OPERANDS, "Select": (1, 2), "Gather": (0,),
    "GatherElements": (0,), "GatherND": (0,), "ReduceMax": (0,), "ReduceMin": (0,),
    "OneHot": (2, 3), "Pad": (0, 3), "ScatterNDUpdate": (0, 2),
}  # fmt: skip
"""Kinds whose outputs hold elements of these operands, and no other numbers."""

_ONLY_MOVE = frozenset(
    {
        *("Convert", "Gather", "GatherElements", "GatherND", "Reshape", "Squeeze", "Unsqueeze"),
        *("Transpose", "Broadcast", "Tile", "Slice", "StridedSlice", "Split", "VariadicSplit"),
        *("Concat", "Result"),
    }
)
"""Kinds that keep all 32 bits."""

_COMPARES = frozenset({"Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual"})


@dataclass(frozen=True, slots=True)
class Bounds:
    """Least and greatest integer that each integer input may hold."""

    of: Mapping[str, Range]

    def check(self, inputs: Mapping[str, Tensor]) -> None:
        for name, (least, most) in self.of.items():
            if inputs[name].numel():
                array = inputs[name].numpy()  # torch cannot compare all of its types
                if array.min() < least or array.max() > most:
                    raise PreconditionFailed(
                        f"OpenVINO takes integers from {least} to {most} in input {name!r}"
                    )


def exact_within(model: Any) -> Bounds:
    """Bounds of integer inputs within which OpenVINO computes as ONNX defines.

    The model is of static shapes, its constants folded. Raises ``PreconditionFailed``, naming the
    operator, if there may be none.
    """
    steps, inputs, returned = list[Step](), dict[str, Range](), set[str]()
    for node in model.get_ordered_ops():
        kind = node.get_type_name()
        _check_floats(node, kind)
        if kind == "Parameter":
            if _is_integer(node.output(0)):
                inputs[_key(node.output(0))] = _held(node.output(0))
        elif (step := _step(node, kind)) is not None:
            steps.append(step)
            if kind == "Result" and step.limits:
                returned.add(step.operands[0])
    followed, wanted = list[Step](), set[str]()
    for step in reversed(steps):
        if not returned.isdisjoint(step.outputs):
            returned.update(step.operands[place] for place in step.data)
        if step.limits or step.indices or not wanted.isdisjoint(step.outputs):
            wanted.update(step.operands[place] for place in step.data)
            wanted |= step.indices.keys()
            followed.append(step)
    return Bounds(widest_inputs(followed[::-1], inputs, frozenset(returned)))


def _step(node: Any, kind: str) -> Step | None:
    """None if it has to do with floats only; ``PreconditionFailed`` if it may err on integers."""
    ports = [node.input_value(place) for place in range(node.get_input_size())]
    outputs = tuple(_key(port) for port in node.outputs())
    transfer = _transfer(node, kind, ports)
    makes = any(_is_integer(port) and port.get_target_inputs() for port in node.outputs())
    reads = any(_is_integer(port) and not _is_constant(port) for port in ports)
    if transfer is None:
        if makes or reads:
            raise PreconditionFailed(f"OpenVINO would compute {kind} on integers of 32 bits")
        return None
    data = tuple(place for place in _MOVES.get(kind, _ALL_OPERANDS[:2]) if place < len(ports))
    held = _held if kind in _ONLY_MOVE else _held_in_floats
    limits = {
        _key(port): held(port)
        for port in (*(ports[place] for place in data), *node.outputs())
        if _is_integer(port)
        and kind != "Constant"  # whose readers tell: bounds of slices are clipped
    }
    if kind == "Convert" and makes and ports[0].get_element_type().is_real():
        limits[_key(ports[0])] = _TO_32_BITS
    if kind == "Convert" and reads and _is_boolean(node.output(0)):
        limits[_key(ports[0])] = (INT32[0] + 1, INT32[1])  # the least of all becomes False
    indices = dict(_indices(node, kind, ports))
    return Step(kind, tuple(map(_key, ports)), outputs, transfer, data, limits, indices)


def _transfer(node: Any, kind: str, ports: Sequence[Any]) -> Transfer | None:
    """How ranges pass through an operator; None if that is not known."""
    if kind == "Constant":
        few = prod(node.output(0).get_shape()) <= _FOLLOWED_FLOATS
        followed = few or _is_integer(node.output(0))
        return constant(content_range(node.get_data()) if followed else ALL)
    if kind in _MOVES:
        places = [place for place in _MOVES[kind] if place < len(ports)]
        return lambda ranges: [hull([ranges[place] for place in places])]
    if kind in _COMPARES or all(_is_boolean(port) for port in (*ports, *node.outputs())):
        return constant(BOOLEAN)
    if kind in BINARY:
        binary = BINARY[kind]
        return lambda ranges: [binary(ranges[0], ranges[1])]
    if kind in UNARY:
        return of_operand(UNARY[kind])
    make = _BY_NODE.get(kind)
    return make(node, ports) if make is not None else None


def _convert(node: Any, ports: Sequence[Any]) -> Transfer:
    if _is_boolean(node.output(0)):
        return constant(BOOLEAN)
    if _is_boolean(ports[0]):
        return constant(BOOLEAN)
    return of_operand(truncated) if _is_integer(node.output(0)) else lambda ranges: [ranges[0]]


def _clamp(node: Any, _: Sequence[Any]) -> Transfer:
    least, most = float(node.get_attributes()["min"]), float(node.get_attributes()["max"])
    return of_operand(
        lambda bounds: (min(max(bounds[0], least), most), max(min(bounds[1], most), least))
    )


def _cumulative_sum(node: Any, ports: Sequence[Any]) -> Transfer:
    (axis,) = _numbers(ports[1])
    extent = ports[0].get_shape()[axis]
    return of_operand(summed(extent, 0 if node.get_attributes().get("exclusive") else 1))


def _sum(_: Any, ports: Sequence[Any]) -> Transfer:
    count = reduced_count(ports[0].get_shape(), _numbers(ports[1]))
    return of_operand(summed(count, count))


def _quotient(_: Any, ports: Sequence[Any]) -> Transfer | None:
    if (divisor := _divisor(ports)) is None:
        return None
    return of_operand(lambda bounds: quotients(bounds, divisor))


def _remainder(_: Any, ports: Sequence[Any]) -> Transfer | None:
    if (divisor := _divisor(ports)) is None:
        return None
    most = max(map(abs, divisor)) - 1
    return constant((-most, most))


def _divisor(ports: Sequence[Any]) -> Range | None:
    """Range of a constant divisor of integers without 0; None of any other."""
    if not (_is_constant(ports[1]) and _is_integer(ports[0])):
        return None
    data = ports[1].get_node().get_data()
    return content_range(data) if data.all() else None


def _top(node: Any, ports: Sequence[Any]) -> Transfer | None:
    """Elements and their places; not of integers, which are often equal, in any order of these."""
    attributes = node.get_attributes()
    reads_places = node.output(1).get_target_inputs()
    if _is_integer(ports[0]) and reads_places and not attributes.get("stable"):
        return None
    last = ports[0].get_shape()[attributes["axis"]] - 1
    return lambda ranges: [ranges[0], (0, last)]


_BY_NODE: Mapping[str, Callable[[Any, Sequence[Any]], Transfer | None]] = {
    "Convert": _convert,
    "Clamp": _clamp,
    "CumSum": _cumulative_sum,
    "Divide": _quotient,
    "FloorMod": _remainder,
    "Mod": _remainder,
    "ReduceSum": _sum,
    "TopK": _top,
}


def _indices(node: Any, kind: str, ports: Sequence[Any]) -> Iterator[tuple[str, Range]]:
    """Operands that hold indices, with those that the operator takes."""
    if kind in ("Gather", "GatherElements"):
        axis = _numbers(ports[2])[0] if kind == "Gather" else node.get_attributes()["axis"]
        yield _key(ports[1]), _places(ports[0].get_shape()[axis])
    elif kind in ("GatherND", "ScatterNDUpdate"):
        first = node.get_attributes().get("batch_dims", 0)
        extents = list(ports[0].get_shape())[first : first + ports[1].get_shape()[-1]]
        yield from _columns(ports[1], extents)


def _columns(port: Any, extents: Sequence[int]) -> Iterator[tuple[str, Range]]:
    """The same of indices that hold one along each of several axes."""
    maker = port.get_node()
    parts = [maker.input_value(place) for place in range(maker.get_input_size())]
    if maker.get_type_name() == "Concat" and len(parts) == len(extents):
        yield from ((_key(part), _places(n)) for part, n in zip(parts, extents, strict=True))
    elif not _is_constant(port) or not _are_within(maker.get_data(), extents):
        yield _key(port), _places(min(extents))


def _are_within(indices: Any, extents: Sequence[int]) -> bool:
    return all(
        -extent <= column.min() and column.max() < extent
        for column, extent in zip(indices.reshape(-1, len(extents)).T, extents, strict=True)
    )


def _places(extent: int) -> Range:
    return -extent, extent - 1


def _check_floats(node: Any, kind: str) -> None:
    """Raise PreconditionFailed if a node is quantised or computes in another precision."""
    if kind in _QUANTISED:
        raise PreconditionFailed("OpenVINO would compute it in INT8: the model is quantised")
    if node.get_attributes().get("body") is not None or hasattr(node, "get_function"):
        raise PreconditionFailed(f"OpenVINO does not say what {kind} computes on integers")
    for port in node.outputs():
        if _type(port) == "f64" and not _is_stored(node, kind):
            raise PreconditionFailed(f"OpenVINO would compute {kind} in FP32, not in f64")


def _is_stored(node: Any, kind: str) -> bool:
    users = [user.get_node().get_type_name() for user in node.output(0).get_target_inputs()]
    return kind == "Constant" and all(user == "Convert" for user in users)


def _numbers(port: Any) -> list[int]:
    return [int(number) for number in port.get_node().get_data().flatten().tolist()]


def _type(port: Any) -> str:
    return str(port.get_element_type().get_type_name())


def _held(port: Any) -> Range:
    return _HELD.get(_type(port), INT32)


def _held_in_floats(port: Any) -> Range:
    low, high = _held(port)
    return max(low, _EXACT[0]), min(high, _EXACT[1])


def _is_boolean(port: Any) -> bool:
    return _type(port) == "boolean"


def _is_integer(port: Any) -> bool:
    return bool(port.get_element_type().is_integral()) and not _is_boolean(port)


def _is_constant(port: Any) -> bool:
    return bool(port.get_node().get_type_name() == "Constant")


def _key(port: Any) -> str:
    """Name of a value; of an input that of the model's file."""
    if port.get_node().get_type_name() == "Parameter":
        return str(port.get_any_name())
    return f"{port.get_node().get_name()}:{port.get_index()}"
