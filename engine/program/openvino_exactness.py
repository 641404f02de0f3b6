"""Whether OpenVINO computes a model as ONNX defines it, in FP32 and on which integers.

Its CPU plugin moves 64-bit integers in 32 bits, compares many and sums some in FP32, computes FP64
in FP32, and takes an index out of range for a row of zeros, where ONNX Runtime and Braid's own
plans refuse it. Measured errors would not tell: they are of one input, with small integers. So
integers pass through a white list of kinds, and each request is checked against the bounds that
follow for its inputs:

    moved, selected, compared, made a float     up to 2^24, which FP32 holds
    an index                                    the table's extent
    counted: added, multiplied, summed          0 and 1, as in a mask

FP16 and BF16 are computed in FP32, as Braid's own plans do. A quantised model would be computed in
INT8.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from braid.core.errors import PreconditionFailed
from braid.engine.runtime.arrays import Arrays

Range = tuple[int, int]
"""Least and greatest integer."""

_EXACT: Range = (-(1 << 24), 1 << 24)
"""Integers that FP32 holds, in which some kinds compute, and others when they are fused."""

_BOOLEAN: Range = (0, 1)

_QUANTISED = frozenset({"FakeQuantize", "FakeConvert"})

_PASSES: Mapping[str, tuple[int, ...]] = {
    "Result": (0,), "Reshape": (0,), "Squeeze": (0,), "Unsqueeze": (0,), "Transpose": (0,),
    "Broadcast": (0,), "Tile": (0,), "Slice": (0,), "StridedSlice": (0,), "Split": (0,),
    "VariadicSplit": (0,), "Concat": (*range(1 << 10),), "Gather": (0,), "GatherElements": (0,),
    "GatherND": (0,), "ScatterNDUpdate": (0, 2), "Select": (1, 2), "Pad": (0, 3),
    "ReduceMax": (0,), "ReduceMin": (0,), "Convert": (0,),
    "Equal": (0, 1), "NotEqual": (0, 1), "Less": (0, 1), "LessEqual": (0, 1), "Greater": (0, 1),
    "GreaterEqual": (0, 1),
}  # fmt: skip
"""Kinds that move, select, compare or convert elements of these operands."""

_COUNTS: Mapping[str, Callable[[int, int], int]] = {
    "Add": int.__add__, "Subtract": int.__add__, "Multiply": int.__mul__,
    "Maximum": max, "Minimum": max, "CumSum": int.__mul__,
}  # fmt: skip
"""Kinds of arithmetic: magnitudes of two operands, or of one and its extent -> of the output."""

_WIDE = frozenset({"i32", "i64"})


@dataclass(frozen=True, slots=True)
class Bounds:
    """Least and greatest integer that each integer input may hold."""

    of: Mapping[str, Range]

    def check(self, inputs: Arrays) -> None:
        for name, (least, most) in self.of.items():
            array = inputs[name]
            if array.size and (array.min() < least or array.max() > most):
                raise PreconditionFailed(
                    f"OpenVINO takes integers from {least} to {most} in input {name!r}"
                )


def exact_within(model: Any) -> Bounds:
    """Return bounds of integer inputs within which OpenVINO computes as ONNX defines.

    ``model`` is of static shapes, its constants folded. Raises ``PreconditionFailed``, naming an
    operator, if there may be none.
    """
    walk = _Walk()
    for node in model.get_ordered_ops():
        kind = node.get_type_name()
        _check_floats(node, kind)
        if kind != "Constant":
            walk.take(node, kind)
    return Bounds(walk.bounds)


@dataclass(frozen=True, slots=True)
class _Integers:
    """What the integers of one value are."""

    moved: frozenset[str] = frozenset()  # inputs whose elements are among them
    most: int = 0  # magnitude of the others
    is_counted: bool = False  # whether elements of inputs were added, multiplied or summed


class _Walk:
    """Follows integers through a model, and narrows the bounds of its inputs."""

    def __init__(self) -> None:
        self.bounds: dict[str, Range] = {}
        self._integers: dict[str, _Integers] = {}

    def take(self, node: Any, kind: str) -> None:
        """Take the next node in topological order, or raise ``PreconditionFailed``."""
        ports = [node.input_value(place) for place in range(node.get_input_size())]
        makes = any(_is_integer(port) and port.get_target_inputs() for port in node.outputs())
        reads = any(_is_integer(port) and not _is_constant(port) for port in ports)
        if kind == "Parameter" and _is_integer(node.output(0)):
            name = _key(node.output(0))
            self.bounds[name] = _EXACT
            self._integers[name] = _Integers(frozenset({name}))
        elif kind in _INDEXED or makes or reads:
            made = self._through(node, kind, ports)
            self._integers |= dict.fromkeys(map(_key, node.outputs()), made)

    def _through(self, node: Any, kind: str, ports: Sequence[Any]) -> _Integers:
        if kind in _INDEXED:
            self._hold_indices(kind, ports[1], _INDEXED[kind](node, ports))
        if kind in _PASSES and not _changes(node, kind):
            return self._passed(kind, [ports[i] for i in _PASSES[kind] if i < len(ports)])
        if kind in _COUNTS and _type(node.output(0)) in _WIDE:
            return self._counted(kind, ports)
        if kind == "TopK" and (_is_float(ports[0]) or _is_stable_place(node)):
            self._passed(kind, ports[:1])
            return _Integers(most=ports[0].get_shape()[node.get_attributes()["axis"]] - 1)
        raise PreconditionFailed(f"OpenVINO would compute {kind} on integers of 32 bits")

    def _passed(self, kind: str, ports: Sequence[Any]) -> _Integers:
        values = [self._hold(kind, port, _EXACT) for port in ports if not _is_float(port)]
        passed = _Integers(
            frozenset[str]().union(*(value.moved for value in values)),
            max((value.most for value in values), default=0),
            any(value.is_counted for value in values),
        )
        if kind == "Result" and passed.is_counted:
            raise PreconditionFailed("OpenVINO would compute an output on other integers")
        return passed

    def _counted(self, kind: str, ports: Sequence[Any]) -> _Integers:
        """Integers made of constants, counts, and elements of inputs, which are held to 0 and 1."""
        data = ports[:1] if kind == "CumSum" else ports
        passed = self._passed(kind, data)
        self._narrow(passed, _BOOLEAN)
        magnitudes = [max(value.most, len(value.moved) > 0) for value in map(self._of, data)]
        if kind == "CumSum":
            magnitudes.append(max(ports[0].get_shape()))
        is_counted = passed.is_counted or bool(passed.moved)
        made = _Integers(most=_COUNTS[kind](*magnitudes), is_counted=is_counted)
        _check(kind, made, _EXACT)
        return made

    def _hold_indices(self, kind: str, port: Any, extents: Sequence[int]) -> None:
        """Hold indices, in columns if there are several extents, within these."""
        maker = port.get_node()
        if _is_constant(port):
            columns = maker.get_data().reshape(-1, len(extents))
            if not ((columns >= [-n for n in extents]) & (columns < extents)).all():
                raise PreconditionFailed(
                    f"OpenVINO would read zeros in {kind}: an index is outside"
                )
        elif len(extents) > 1 and _is_of_columns(maker, len(extents)):
            for place, extent in enumerate(extents):
                self._hold_indices(kind, maker.input_value(place), [extent])
        else:
            self._hold(kind, port, (-min(extents), min(extents) - 1))

    def _hold(self, kind: str, port: Any, limit: Range) -> _Integers:
        value = self._of(port)
        _check(kind, value, limit)
        self._narrow(value, limit)
        return value

    def _narrow(self, value: _Integers, limit: Range) -> None:
        for name in value.moved:
            least, most = self.bounds[name]
            self.bounds[name] = max(least, limit[0]), min(most, limit[1])

    def _of(self, port: Any) -> _Integers:
        if _is_boolean(port):
            return _Integers(most=1)
        if _is_constant(port):
            data = port.get_node().get_data()
            return _Integers(most=max(-int(data.min()), int(data.max())) if data.size else 0)
        return self._integers[_key(port)]


def _check(kind: str, value: _Integers, limit: Range) -> None:
    if not limit[0] <= -value.most <= value.most <= limit[1]:
        raise PreconditionFailed(
            f"OpenVINO would compute {kind} on other integers, as one may be {value.most}; "
            f"it takes {limit[0]} to {limit[1]}"
        )


def _changes(node: Any, kind: str) -> bool:
    """Whether a node sums integers that it moves, or makes them of floats or of wider ones."""
    is_of_floats, to = _is_float(node.input_value(0)), node.output(0)
    if kind == "Convert":
        return is_of_floats or (_is_integer(to) and _type(to) not in _WIDE)
    return not is_of_floats and node.get_attributes().get("reduction", "none") != "none"


def _is_stable_place(node: Any) -> bool:
    """Whether only places of TopK are read, as of ArgMax, and of equal elements the first ones."""
    return bool(node.get_attributes().get("stable") and not node.output(0).get_target_inputs())


def _is_of_columns(node: Any, count: int) -> bool:
    """Whether a node joins so many columns along the last axis."""
    is_joined = node.get_type_name() == "Concat" and node.get_input_size() == count
    last = len(node.output(0).get_shape()) - 1
    return bool(is_joined and node.get_attributes()["axis"] in (-1, last))


def _along(axis: int, ports: Sequence[Any]) -> list[int]:
    return [ports[0].get_shape()[axis]]


def _of_tuples(node: Any, ports: Sequence[Any]) -> list[int]:
    first, indices = node.get_attributes().get("batch_dims", 0), ports[1].get_shape()
    return list(ports[0].get_shape())[first : first + indices[-1]]


_INDEXED: Mapping[str, Callable[[Any, Sequence[Any]], list[int]]] = {
    "Gather": lambda _, ports: _along(int(ports[2].get_node().get_data().item()), ports),
    "GatherElements": lambda node, ports: _along(node.get_attributes()["axis"], ports),
    "GatherND": _of_tuples,
    "ScatterNDUpdate": _of_tuples,
}
"""Kinds whose operand 1 holds indices -> extents that these are along."""


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
    """Whether a node is a constant that is converted before it is used."""
    users = [user.get_node().get_type_name() for user in node.output(0).get_target_inputs()]
    return kind == "Constant" and all(user == "Convert" for user in users)


def _type(port: Any) -> str:
    return str(port.get_element_type().get_type_name())


def _is_boolean(port: Any) -> bool:
    return _type(port) == "boolean"


def _is_float(port: Any) -> bool:
    return bool(port.get_element_type().is_real())


def _is_integer(port: Any) -> bool:
    return bool(port.get_element_type().is_integral()) and not _is_boolean(port)


def _is_constant(port: Any) -> bool:
    return bool(port.get_node().get_type_name() == "Constant")


def _key(port: Any) -> str:
    """Name of a value; of an input that of the model's file."""
    if port.get_node().get_type_name() == "Parameter":
        return str(port.get_any_name())
    return f"{port.get_node().get_name()}:{port.get_index()}"
