"""Whether OpenVINO computes a model as ONNX defines it, in FP32 and on which integers.

Its CPU plugin computes 64-bit integers in 32 bits, FP64 and FP16 in FP32, and takes an index out of
range for a row of zeros, where ONNX Runtime and Braid's own plans refuse it. Measured errors would
not tell: they are of one input, with small integers. So integers that depend on inputs may only be
moved, compared, made floats, or used as indices; and inputs are checked against the bounds that
follow. A quantised model would be computed in INT8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from braid.core.errors import PreconditionFailed

INT32 = (-(1 << 31), (1 << 31) - 1)

_FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
_QUANTISED = frozenset({"FakeQuantize", "FakeConvert"})
_MOVES = frozenset(
    {"Parameter", "Result", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Broadcast", "Concat",
     "Split", "VariadicSplit", "Slice", "StridedSlice", "Tile", "Select"}
)  # fmt: skip
_COMPARES = frozenset(
    {"Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual"}
)  # fmt: skip
_GATHERS = frozenset({"Gather"})


@dataclass(frozen=True, slots=True)
class Bounds:
    """Least and largest integer that each integer input may hold."""

    of: Mapping[str, tuple[int, int]]

    def check(self, inputs: Mapping[str, Tensor]) -> None:
        for name, (least, most) in self.of.items():
            if inputs[name].numel():
                low, high = (int(extreme) for extreme in inputs[name].aminmax())
                if low < least or high > most:
                    raise PreconditionFailed(
                        f"OpenVINO takes integers from {least} to {most} in input {name!r}"
                    )


def exact_within(model: Any) -> Bounds:
    """Return bounds of integer inputs within which OpenVINO computes as ONNX defines.

    Args:
        model: of static shapes, its constants folded.

    Raises:
        PreconditionFailed: there may be none; names the operator.
    """
    sources: dict[str, frozenset[str]] = {}  # of integers, by value: the inputs they come from
    bounds: dict[str, tuple[int, int]] = {}
    for node in model.get_ordered_ops():
        kind = node.get_type_name()
        _check_floats(node, kind)
        if kind == "Constant":
            continue
        if kind == "Parameter" and _is_integer(node.output(0)):
            name = node.output(0).get_any_name()
            bounds[name], sources[_key(node.output(0))] = INT32, frozenset({name})
            continue
        origins = {port: sources[_key(port)] for port in _operands(node) if _key(port) in sources}
        _check_integers(node, kind, bool(origins))
        if kind in _GATHERS:
            index = node.input_value(1)
            extent = node.input_value(0).get_shape()[_axis(node)]
            for name in sources.get(_key(index), ()):
                least, most = bounds[name]
                bounds[name] = max(least, -extent), min(most, extent - 1)
        merged = frozenset[str]().union(*origins.values())
        sources.update({_key(port): merged for port in node.outputs() if _is_integer(port)})
    return Bounds(bounds)


def _check_floats(node: Any, kind: str) -> None:
    """Raise PreconditionFailed if a node is quantised or computes in another precision."""
    if kind in _QUANTISED:
        raise PreconditionFailed("OpenVINO would compute it in INT8: the model is quantised")
    if node.get_attributes().get("body") is not None or hasattr(node, "get_function"):
        raise PreconditionFailed(f"OpenVINO does not say what {kind} computes on integers")
    for port in node.outputs():
        type_name = port.get_element_type().get_type_name()
        if type_name in _FLOATS - {"f32"} and not _is_stored(node, kind):
            raise PreconditionFailed(f"OpenVINO would compute {kind} in FP32, not in {type_name}")


def _is_stored(node: Any, kind: str) -> bool:
    """Whether a node is a constant that is converted before it is used."""
    users = [user.get_node().get_type_name() for user in node.output(0).get_target_inputs()]
    return kind == "Constant" and all(user == "Convert" for user in users)


def _check_integers(node: Any, kind: str, reads_integers: bool) -> None:
    """Raise PreconditionFailed if a node may compute other integers in 32 bits than in 64."""
    makes_integers = any(
        _is_integer(port) and port.get_target_inputs()  # as of MaxPool's indices seldom are
        for port in node.outputs()
    )
    if not reads_integers and not makes_integers:
        return
    is_fine = (
        kind in _MOVES
        or kind in _COMPARES
        or kind in _GATHERS
        or (kind == "Convert" and reads_integers)
        or (kind == "TopK" and not reads_integers)
    )
    if not is_fine:
        raise PreconditionFailed(f"OpenVINO would compute {kind} on integers of 32 bits")


def _operands(node: Any) -> Iterator[Any]:
    return (node.input_value(position) for position in range(node.get_input_size()))


def _axis(node: Any) -> int:
    (axis,) = node.input_value(2).get_node().get_data().flatten().tolist()
    return int(axis)


def _is_integer(port: Any) -> bool:
    kind = port.get_element_type()
    return bool(kind.is_integral()) and kind.get_type_name() != "boolean"


def _key(port: Any) -> str:
    return f"{port.get_node().get_name()}:{port.get_index()}"
