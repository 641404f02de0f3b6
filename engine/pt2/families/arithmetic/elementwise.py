"""Activations and arithmetic, element by element."""

from __future__ import annotations

import math

from braid.engine.lowering.builder import Builder
from braid.engine.onnx.node import UnsupportedUse
from braid.engine.ops.dtypes import torch_dtype
from braid.engine.pt2.call_arguments import Use
from braid.engine.pt2.lowering_table import lowers

_UNARY = (
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_not", "ceil", "cos"),
    *("cosh", "erf", "exp", "expm1", "floor", "hardswish", "log", "log1p", "logical_not", "mish"),
    *("neg", "reciprocal", "relu", "round", "rsqrt", "sigmoid", "sign", "silu", "sin", "sinh"),
    *("sqrt", "square", "tan", "tanh", "isnan"),
)
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
    def unary(use: Use, to: Builder) -> None:
        x = use.tensor("self")
        if name not in ("abs", "neg", "sign", "relu", "square", "isnan") and "not" not in name:
            x = _as_float(use, to, x)
        to.emit(f"aten.{name}", [x], use.output)


def _as_float(use: Use, to: Builder, x: str) -> str:
    """Functions of integers are computed in FP32; rounding leaves integers alone."""
    dtype = use.dtype_of("self")
    rounding = use.target.split(".")[1] in ("ceil", "floor", "round")
    if not dtype or torch_dtype(dtype).is_floating_point or rounding:
        return x
    return to.emit("braid.cast", [x], dtype="FP32")


def _enter_binary(target: str, kind: str) -> None:
    @lowers(target)
    def binary(use: Use, to: Builder) -> None:
        to.emit(kind, [use.tensor("self"), use.operand("other")], use.output)


for _name in _UNARY:
    _enter_unary(_name)
for _name, _kind in _BINARY.items():
    for _overload in ("Tensor", "Scalar"):
        _enter_binary(f"aten.{_name}.{_overload}", _kind)
for _name, _kind in _PLAIN_BINARY.items():
    _enter_binary(f"aten.{_name}", _kind)


@lowers("aten.add.Tensor", "aten.add.Scalar")
def add(use: Use, to: Builder) -> None:
    """Sum; ``alpha`` scales the second operand."""
    a, b = use.tensor("self"), _scaled(use, to)
    if not (to.give_bias(a, b, use.outputs[0]) or to.give_bias(b, a, use.outputs[0])):
        to.emit("aten.add", [a, b], use.output)


@lowers("aten.sub.Tensor", "aten.sub.Scalar")
def sub(use: Use, to: Builder) -> None:
    """Difference; ``alpha`` scales the second operand."""
    to.emit("aten.sub", [use.tensor("self"), _scaled(use, to)], use.output)


@lowers("aten.rsub.Scalar", "aten.rsub.Tensor")
def rsub(use: Use, to: Builder) -> None:
    """The second operand less the first."""
    use.require("alpha", 1)
    to.emit("aten.sub", [use.operand("other"), use.tensor("self")], use.output)


def _scaled(use: Use, to: Builder) -> str:
    alpha, other = use.number("alpha", 1), use.operand("other")
    return other if alpha == 1 else to.emit("braid.affine", [other], scale=alpha, shift=0.0)


@lowers("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor")
def div(use: Use, to: Builder) -> None:
    """True division."""
    kinds = {use.dtype_of("self"), use.dtype_of("other") or use.dtype_of("self")}
    floats = all(dtype and torch_dtype(dtype).is_floating_point for dtype in kinds)
    attributes = {"truncate": True} if floats else {}  # as ONNX has it; floats do not care
    operands = [use.tensor("self"), use.operand("other")]
    to.emit("aten.div", operands, use.output, host=None, **attributes)


@lowers("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(use: Use, to: Builder) -> None:
    """Division rounded towards zero or down."""
    mode = use.text("rounding_mode", "")
    x, by = use.tensor("self"), use.operand("other")
    if mode == "floor":
        _floor_divide(use, to, x, by)
        return
    if mode != "trunc" or torch_dtype(use.dtype_of("self")).is_floating_point:
        raise UnsupportedUse(f"rounding_mode={mode}")
    to.emit("aten.div", [x, by], use.output, truncate=True)


@lowers("aten.floor_divide.default")
def floor_divide(use: Use, to: Builder) -> None:
    """Division rounded down."""
    _floor_divide(use, to, use.tensor("self"), use.operand("other"))


def _floor_divide(use: Use, to: Builder, x: str, by: str) -> None:
    if torch_dtype(use.dtype_of("self")).is_floating_point:
        to.emit("aten.floor", [to.emit("aten.div", [x, by])], use.output)
        return
    rest = to.emit("aten.remainder", [x, by])  # of the divisor's sign: what is left divides evenly
    to.emit("aten.div", [to.emit("aten.sub", [x, rest]), by], use.output, truncate=True)


@lowers("aten.pow.Tensor_Scalar")
def pow_scalar(use: Use, to: Builder) -> None:
    """Power with a fixed exponent."""
    x, value = use.tensor("self"), use.number("exponent")
    if isinstance(value, float):
        x = _as_float(use, to, x)
        value = int(value) if value.is_integer() and abs(value) < 2**31 else value
    to.emit("braid.pow", [x], use.output, value=value)


@lowers("aten.pow.Tensor_Tensor")
def pow_tensor(use: Use, to: Builder) -> None:
    """Power."""
    if use.dtype_of("self") != use.dtype_of("exponent"):
        raise UnsupportedUse("base and exponent of different types")
    to.emit("braid.pow", [use.tensor("self"), use.tensor("exponent")], use.output)


@lowers("aten.clamp.default", "aten.clamp_min.default", "aten.clamp_max.default")
def clamp(use: Use, to: Builder) -> None:
    """Limit to [min, max]."""
    low, high = use.number("min", None), use.number("max", None)
    if isinstance(low, float) or isinstance(high, float):
        low, high = (None if b is None else float(b) for b in (low, high))
        if not torch_dtype(use.dtype_of("self")).is_floating_point:
            raise UnsupportedUse("integers clamped by floats")
    to.emit("aten.clamp", [use.tensor("self")], use.output, min=low, max=high)


@lowers("aten.hardtanh.default", "aten.relu6.default")
def hardtanh(use: Use, to: Builder) -> None:
    """Limit to [min_val, max_val]."""
    six = use.target == "aten.relu6.default"
    low = float(use.number("min_val", 0.0 if six else -1.0))
    high = float(use.number("max_val", 6.0 if six else 1.0))
    to.emit("aten.clamp", [use.tensor("self")], use.output, min=low, max=high)


@lowers("aten.leaky_relu.default")
def leaky_relu(use: Use, to: Builder) -> None:
    """x where x >= 0, else slope * x."""
    slope = float(use.number("negative_slope", 0.01))
    to.emit("aten.leaky_relu", [use.tensor("self")], use.output, negative_slope=slope)


@lowers("aten.elu.default")
def elu(use: Use, to: Builder) -> None:
    """x where x >= 0, else alpha * (exp(x) - 1)."""
    use.require("scale", 1)
    use.require("input_scale", 1)
    alpha = float(use.number("alpha", 1.0))
    to.emit("aten.elu", [use.tensor("self")], use.output, alpha=alpha)


@lowers("aten.celu.default")
def celu(use: Use, to: Builder) -> None:
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""
    alpha = float(use.number("alpha", 1.0))
    to.emit("aten.celu", [use.tensor("self")], use.output, alpha=alpha)


@lowers("aten.selu.default")
def selu(use: Use, to: Builder) -> None:
    """Scaled exponential linear unit."""
    alpha, gamma = 1.6732632423543772, 1.0507009873554805
    to.emit("braid.selu", [use.tensor("self")], use.output, alpha=alpha, gamma=gamma)


@lowers("aten.gelu.default")
def gelu(use: Use, to: Builder) -> None:
    """Gaussian error linear unit."""
    approximate = use.text("approximate", "none")
    to.emit("aten.gelu", [use.tensor("self")], use.output, approximate=approximate)


@lowers("aten.hardsigmoid.default")
def hardsigmoid(use: Use, to: Builder) -> None:
    """clip(x + 3, 0, 6) / 6."""
    to.emit("braid.hardsigmoid", [use.tensor("self")], use.output, alpha=1 / 6, beta=0.5)


@lowers("aten.softplus.default")
def softplus(use: Use, to: Builder) -> None:
    """log(1 + exp(beta * x)) / beta, a straight line beyond the threshold."""
    beta, threshold = float(use.number("beta", 1.0)), float(use.number("threshold", 20.0))
    to.emit("aten.softplus", [use.tensor("self")], use.output, beta=beta, threshold=threshold)


@lowers("aten.log_sigmoid.default")
def log_sigmoid(use: Use, to: Builder) -> None:
    """Log of sigmoid."""
    to.emit("aten.logsigmoid", [use.tensor("self")], use.output)


@lowers("aten.softsign.default")
def softsign(use: Use, to: Builder) -> None:
    """x / (1 + |x|)."""
    to.emit("aten.softsign", [use.tensor("self")], use.output)


@lowers("aten.prelu.default")
def prelu(use: Use, to: Builder) -> None:
    """x where x >= 0, else slope * x, a slope for each channel."""
    slope, rank = use.tensor("weight"), use.rank("self")
    if use.shape_of("weight") != (1,) and rank > 2:
        slope = to.emit("braid.reshape", [slope], shape=[-1] + [1] * (rank - 2))
    to.emit("braid.prelu", [use.tensor("self"), slope], use.output)


@lowers("aten.glu.default")
def glu(use: Use, to: Builder) -> None:
    """One half times the sigmoid of the other."""
    axis = use.axis("dim", use.rank(), -1)
    a, b = _halves(to, use.tensor("self"), axis)
    to.emit("aten.mul", [a, to.emit("aten.sigmoid", [b])], use.output)


def _halves(to: Builder, x: str, axis: int) -> tuple[str, str]:
    names = (f"{x}/half", f"{x}/other half")
    to.emit("braid.split", [x], names, axis=axis, parts=2)
    a, b = (to.resolve(name) or "" for name in names)
    return a, b


@lowers("aten.isinf.default")
def isinf(use: Use, to: Builder) -> None:
    """True at infinities."""
    to.emit("braid.isinf", [use.tensor("self")], use.output)


@lowers("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar")
def where(use: Use, to: Builder) -> None:
    """Choose by a condition."""
    like = "other" if use.dtype_of("other") else "self"
    operands = [use.operand("self", like), use.operand("other", like)]
    to.emit("aten.where", [use.tensor("condition"), *operands], use.output)


@lowers("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(use: Use, to: Builder) -> None:
    """A value where the mask is true."""
    value = use.operand("value")
    content = to.constant(value)
    dtype = use.dtype_of("self")
    if content is not None and dtype:
        value = to.add_constant(f"{use.label}/value", content.to(torch_dtype(dtype)))
    to.emit("aten.where", [use.tensor("mask"), value, use.tensor("self")], use.output)


@lowers("aten.fill.Scalar", "aten.fill.Tensor")
def fill(use: Use, to: Builder) -> None:
    """One value everywhere."""
    value = to.literal(use.operand("value"))
    if value is None or isinstance(value, list) or not math.isfinite(value):
        raise UnsupportedUse("a fill value that is not fixed")
    to.emit("braid.full_like", [use.tensor("self")], use.output, value=value, dtype=None)


@lowers("aten.zero.default")
def zero(use: Use, to: Builder) -> None:
    """Zeros."""
    to.emit("braid.full_like", [use.tensor("self")], use.output, value=0, dtype=None)


@lowers("aten.copy.default")
def copy(use: Use, to: Builder) -> None:
    """The source, broadcast and converted to the target."""
    use.without_effect("non_blocking")
    target = use.tensor("self")
    converted = to.emit("braid.cast_like", [use.tensor("src"), target])
    to.emit("braid.expand_as", [converted, target], use.output)
