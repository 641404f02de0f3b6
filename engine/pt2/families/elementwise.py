"""Activations and arithmetic, element by element."""

from __future__ import annotations

import math
from collections.abc import Mapping

from braid.engine.lowering.builder import Builder, UnsupportedUse, emit_sum
from braid.engine.ops.dtypes import torch_dtype
from braid.engine.ops.families.elementwise import TORCH_UNARY
from braid.engine.pt2.call_arguments import CallArguments
from braid.engine.pt2.lowering_table import lowers

_UNARY = (*TORCH_UNARY, "bitwise_not", "hardswish", "isnan", "logical_not", "mish", "silu")
# aten name -> kind, and its attributes by the names of the arguments, with their default values
_WITH_NUMBERS = {
    "celu": ("aten.celu", {"alpha": 1.0}),
    "isinf": ("braid.isinf", {}),
    "leaky_relu": ("aten.leaky_relu", {"negative_slope": 0.01}),
    "log_sigmoid": ("aten.logsigmoid", {}),
    "softplus": ("aten.softplus", {"beta": 1.0, "threshold": 20.0}),
    "softsign": ("aten.softsign", {}),
}
# aten name -> kind; the overloads take tensors or numbers
_BINARY = {
    **{name: f"aten.{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge", "mul")},
    **{name: f"aten.{name}" for name in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    **{name: f"aten.{name}" for name in ("remainder", "fmod")},
    "__and__": "aten.bitwise_and",
    "__or__": "aten.bitwise_or",
    "__xor__": "aten.bitwise_xor",
}
_PLAIN_BINARY = {
    "maximum.default": "aten.maximum",
    "minimum.default": "aten.minimum",
    "max.other": "aten.maximum",
    "min.other": "aten.minimum",
    "atan2.default": "aten.atan2",
    **{f"logical_{w}.default": f"aten.logical_{w}" for w in ("and", "or", "xor")},
}


def _enter_unary(name: str) -> None:
    @lowers(f"aten.{name}.default")
    def unary(call: CallArguments, to: Builder) -> None:
        x = call.tensor("self")
        if name not in ("abs", "neg", "sign", "relu", "square", "isnan") and "not" not in name:
            x = _as_float(call, to, x)
        to.emit(f"aten.{name}", [x], call.output)


def _enter_with_numbers(name: str, kind: str, defaults: Mapping[str, float]) -> None:
    @lowers(f"aten.{name}.default")
    def with_numbers(call: CallArguments, to: Builder) -> None:
        given = {key: float(call.number(key, usual)) for key, usual in defaults.items()}
        to.emit(kind, [call.tensor("self")], call.output, None, **given)


def _as_float(call: CallArguments, to: Builder, x: str) -> str:
    """Return x, cast to FP32 if it holds integers that are not just rounded."""
    dtype = call.dtype_of("self")
    rounding = call.target.split(".")[1] in ("ceil", "floor", "round")
    if not dtype or torch_dtype(dtype).is_floating_point or rounding:
        return x
    return to.emit("braid.cast", [x], dtype="FP32")


def _enter_binary(target: str, kind: str) -> None:
    @lowers(target)
    def binary(call: CallArguments, to: Builder) -> None:
        to.emit(kind, [call.tensor("self"), call.operand("other")], call.output)


for _name in _UNARY:
    _enter_unary(_name)
for _name, (_kind, _defaults) in _WITH_NUMBERS.items():
    _enter_with_numbers(_name, _kind, _defaults)
for _name, _kind in _BINARY.items():
    for _overload in ("Tensor", "Scalar"):
        _enter_binary(f"aten.{_name}.{_overload}", _kind)
for _name, _kind in _PLAIN_BINARY.items():
    _enter_binary(f"aten.{_name}", _kind)


@lowers("aten.add.Tensor", "aten.add.Scalar")
def add(call: CallArguments, to: Builder) -> None:
    emit_sum(to, call.tensor("self"), _scaled(call, to), call.outputs[0])


@lowers("aten.sub.Tensor", "aten.sub.Scalar")
def sub(call: CallArguments, to: Builder) -> None:
    to.emit("aten.sub", [call.tensor("self"), _scaled(call, to)], call.output)


@lowers("aten.rsub.Scalar", "aten.rsub.Tensor")
def rsub(call: CallArguments, to: Builder) -> None:
    call.require("alpha", 1)
    to.emit("aten.sub", [call.operand("other"), call.tensor("self")], call.output)


def _scaled(call: CallArguments, to: Builder) -> str:
    alpha, other = call.number("alpha", 1), call.operand("other")
    return other if alpha == 1 else to.emit("braid.affine", [other], scale=alpha, shift=0.0)


@lowers("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor")
def div(call: CallArguments, to: Builder) -> None:
    kinds = {call.dtype_of("self"), call.dtype_of("other") or call.dtype_of("self")}
    floats = all(dtype and torch_dtype(dtype).is_floating_point for dtype in kinds)
    attributes = {"truncate": True} if floats else {}  # as ONNX has it; floats do not care
    operands = [call.tensor("self"), call.operand("other")]
    to.emit("aten.div", operands, call.output, host=None, **attributes)


@lowers("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(call: CallArguments, to: Builder) -> None:
    mode = call.text("rounding_mode", "")
    x, by = call.tensor("self"), call.operand("other")
    if mode == "floor":
        _floor_divide(call, to, x, by)
        return
    if mode != "trunc" or torch_dtype(call.dtype_of("self")).is_floating_point:
        raise UnsupportedUse(f"rounding_mode={mode}")
    to.emit("aten.div", [x, by], call.output, truncate=True)


@lowers("aten.floor_divide.default")
def floor_divide(call: CallArguments, to: Builder) -> None:
    _floor_divide(call, to, call.tensor("self"), call.operand("other"))


def _floor_divide(call: CallArguments, to: Builder, x: str, by: str) -> None:
    if torch_dtype(call.dtype_of("self")).is_floating_point:
        to.emit("aten.floor", [to.emit("aten.div", [x, by])], call.output)
        return
    rest = to.emit("aten.remainder", [x, by])  # of the divisor's sign: what is left divides evenly
    to.emit("aten.div", [to.emit("aten.sub", [x, rest]), by], call.output, truncate=True)


@lowers("aten.pow.Tensor_Scalar")
def pow_scalar(call: CallArguments, to: Builder) -> None:
    x, value = call.tensor("self"), call.number("exponent")
    if isinstance(value, float):
        x = _as_float(call, to, x)
        value = int(value) if value.is_integer() and abs(value) < 2**31 else value
    to.emit("braid.pow", [x], call.output, value=value)


@lowers("aten.pow.Tensor_Tensor")
def pow_tensor(call: CallArguments, to: Builder) -> None:
    if call.dtype_of("self") != call.dtype_of("exponent"):
        raise UnsupportedUse("base and exponent of different types")
    to.emit("braid.pow", [call.tensor("self"), call.tensor("exponent")], call.output)


@lowers("aten.clamp.default", "aten.clamp_min.default", "aten.clamp_max.default")
def clamp(call: CallArguments, to: Builder) -> None:
    low, high = call.number("min", None), call.number("max", None)
    if isinstance(low, float) or isinstance(high, float):
        low, high = (None if b is None else float(b) for b in (low, high))
        if not torch_dtype(call.dtype_of("self")).is_floating_point:
            raise UnsupportedUse("integers clamped by floats")
    to.emit("aten.clamp", [call.tensor("self")], call.output, min=low, max=high)


@lowers("aten.hardtanh.default", "aten.relu6.default")
def hardtanh(call: CallArguments, to: Builder) -> None:
    six = call.target == "aten.relu6.default"
    low = float(call.number("min_val", 0.0 if six else -1.0))
    high = float(call.number("max_val", 6.0 if six else 1.0))
    to.emit("aten.clamp", [call.tensor("self")], call.output, min=low, max=high)


@lowers("aten.elu.default")
def elu(call: CallArguments, to: Builder) -> None:
    call.require("scale", 1)
    call.require("input_scale", 1)
    alpha = float(call.number("alpha", 1.0))
    to.emit("aten.elu", [call.tensor("self")], call.output, alpha=alpha)


@lowers("aten.selu.default")
def selu(call: CallArguments, to: Builder) -> None:
    alpha, gamma = 1.6732632423543772, 1.0507009873554805
    to.emit("braid.selu", [call.tensor("self")], call.output, alpha=alpha, gamma=gamma)


@lowers("aten.gelu.default")
def gelu(call: CallArguments, to: Builder) -> None:
    approximate = call.text("approximate", "none")
    to.emit("aten.gelu", [call.tensor("self")], call.output, approximate=approximate)


@lowers("aten.hardsigmoid.default")
def hardsigmoid(call: CallArguments, to: Builder) -> None:
    """clip(x + 3, 0, 6) / 6."""
    to.emit("braid.hardsigmoid", [call.tensor("self")], call.output, alpha=1 / 6, beta=0.5)


@lowers("aten.prelu.default")
def prelu(call: CallArguments, to: Builder) -> None:
    slope, rank = call.tensor("weight"), call.rank("self")
    if call.shape_of("weight") != (1,) and rank > 2:
        slope = to.emit("braid.reshape", [slope], shape=[-1] + [1] * (rank - 2))
    to.emit("braid.prelu", [call.tensor("self"), slope], call.output)


@lowers("aten.glu.default")
def glu(call: CallArguments, to: Builder) -> None:
    """Product of one half of an axis with the sigmoid of the other half."""
    axis = call.axis("dim", call.rank(), -1)
    a, b = _halves(to, call.tensor("self"), axis)
    to.emit("aten.mul", [a, to.emit("aten.sigmoid", [b])], call.output)


def _halves(to: Builder, x: str, axis: int) -> tuple[str, str]:
    names = (f"{x}/half", f"{x}/other half")
    to.emit("braid.split", [x], names, axis=axis, parts=2)
    a, b = (to.resolve(name) or "" for name in names)
    return a, b


@lowers("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar")
def where(call: CallArguments, to: Builder) -> None:
    like = "other" if call.dtype_of("other") else "self"
    operands = [call.operand("self", like), call.operand("other", like)]
    to.emit("aten.where", [call.tensor("condition"), *operands], call.output)


@lowers("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(call: CallArguments, to: Builder) -> None:
    value = call.operand("value")
    content = to.constant(value)
    dtype = call.dtype_of("self")
    if content is not None and dtype:
        value = to.add_constant(f"{call.label}/value", content.to(torch_dtype(dtype)))
    to.emit("aten.where", [call.tensor("mask"), value, call.tensor("self")], call.output)


@lowers("aten.fill.Scalar", "aten.fill.Tensor")
def fill(call: CallArguments, to: Builder) -> None:
    value = to.literal(call.operand("value"))
    if value is None or isinstance(value, list) or not math.isfinite(value):
        raise UnsupportedUse("a fill value that is not fixed")
    to.emit("braid.full_like", [call.tensor("self")], call.output, value=value, dtype=None)


@lowers("aten.zero.default")
def zero(call: CallArguments, to: Builder) -> None:
    to.emit("braid.full_like", [call.tensor("self")], call.output, value=0, dtype=None)


@lowers("aten.copy.default")
def copy(call: CallArguments, to: Builder) -> None:
    """Broadcast the source to the target's shape and convert it to its element type."""
    call.without_effect("non_blocking")
    target = call.tensor("self")
    converted = to.emit("braid.cast_like", [call.tensor("src"), target])
    to.emit("braid.expand_as", [converted, target], call.output)
