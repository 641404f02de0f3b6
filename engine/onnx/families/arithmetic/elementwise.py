"""Activations and arithmetic, element by element."""

from __future__ import annotations

import math

from braid.engine.lowering.builder import Builder
from braid.engine.lowering.unsupported_use import UnsupportedUse
from braid.engine.onnx.lowering_table import lowers
from braid.engine.onnx.node import Node
from braid.engine.onnx.tensors import dtype_name

# Operators without attributes that torch has under the kind: name, first and last form, kind.
_UNARY = (
    ("Abs", 6, 13, "aten.abs"),
    ("Acos", 7, 22, "aten.acos"),
    ("Acosh", 9, 22, "aten.acosh"),
    ("Asin", 7, 22, "aten.asin"),
    ("Asinh", 9, 22, "aten.asinh"),
    ("Atan", 7, 22, "aten.atan"),
    ("Atanh", 9, 22, "aten.atanh"),
    ("BitwiseNot", 18, 18, "aten.bitwise_not"),
    ("Ceil", 6, 13, "aten.ceil"),
    ("Cos", 7, 22, "aten.cos"),
    ("Cosh", 9, 22, "aten.cosh"),
    ("Erf", 9, 13, "aten.erf"),
    ("Exp", 6, 13, "aten.exp"),
    ("Floor", 6, 13, "aten.floor"),
    ("HardSwish", 14, 22, "aten.hardswish"),
    ("Log", 6, 13, "aten.log"),
    ("Mish", 18, 22, "aten.mish"),
    ("Neg", 6, 13, "aten.neg"),
    ("Reciprocal", 6, 13, "aten.reciprocal"),
    ("Relu", 6, 14, "aten.relu"),
    ("Round", 11, 22, "aten.round"),
    ("Sigmoid", 6, 13, "aten.sigmoid"),
    ("Sign", 9, 13, "aten.sign"),
    ("Sin", 7, 22, "aten.sin"),
    ("Sinh", 9, 22, "aten.sinh"),
    ("Softplus", 1, 22, "braid.softplus"),
    ("Softsign", 1, 22, "aten.softsign"),
    ("Sqrt", 6, 13, "aten.sqrt"),
    ("Tan", 7, 22, "aten.tan"),
    ("Tanh", 6, 13, "aten.tanh"),
)
_BINARY = (
    ("BitwiseAnd", 18, 18, "aten.bitwise_and"),
    ("BitwiseOr", 18, 18, "aten.bitwise_or"),
    ("BitwiseXor", 18, 18, "aten.bitwise_xor"),
    ("Mul", 7, 14, "aten.mul"),
    ("PRelu", 7, 16, "braid.prelu"),
    ("Sub", 7, 14, "aten.sub"),
)


def _enter_unary(op_type: str, first: int, last: int, kind: str) -> None:
    @lowers(op_type, first, last)
    def unary(node: Node, to: Builder) -> None:
        to.emit(kind, [node.operand(0)], node.output)


def _enter_binary(op_type: str, first: int, last: int, kind: str) -> None:
    @lowers(op_type, first, last)
    def binary(node: Node, to: Builder) -> None:
        to.emit(kind, [node.operand(0), node.operand(1)], node.output)


def _enter_variadic(op_type: str, first: int, last: int, kind: str) -> None:
    @lowers(op_type, first, last)
    def variadic(node: Node, to: Builder) -> None:
        fold(kind, node, to, node.outputs[0])


for _entry in _UNARY:
    _enter_unary(*_entry)
for _entry in _BINARY:
    _enter_binary(*_entry)
for _entry in (
    ("Sum", 6, 13, "aten.add"),
    ("Max", 6, 13, "aten.maximum"),
    ("Min", 6, 13, "aten.minimum"),
):
    _enter_variadic(*_entry)


def fold(kind: str, node: Node, to: Builder, output: str) -> str:
    """Join all operands pairwise; the last join defines ``output``."""
    first, *rest = node.all_operands()
    if not rest:
        if output:
            to.alias(output, first)
        return first
    for value in rest[:-1]:
        first = to.emit(kind, [first, value])
    return to.emit(kind, [first, rest[-1]], [output])


@lowers("Mean", 6, 13)
def mean(node: Node, to: Builder) -> None:
    """Average of all operands."""
    total = fold("aten.add", node, to, "")
    to.emit("braid.affine", [total], node.output, scale=1 / node.operands, shift=0.0)


@lowers("Add", 7, 14, "a constant vector added to a matrix product becomes its bias")
def add(node: Node, to: Builder) -> None:
    """Sum; as the bias of a linear operator where it can be one."""
    a, b = node.operand(0), node.operand(1)
    output = node.outputs[0]
    if not (to.give_bias(a, b, output) or to.give_bias(b, a, output)):
        to.emit("aten.add", [a, b], node.output)


@lowers("Div", 7, 14)
def div(node: Node, to: Builder) -> None:
    """Quotient; integers divide as in C."""
    to.emit("aten.div", [node.operand(0), node.operand(1)], node.output, truncate=True)


@lowers("Pow", 7, 15)
def power(node: Node, to: Builder) -> None:
    """Power, in the type of the base."""
    exponent = to.constant(node.operand(1))
    if exponent is not None and exponent.numel() == 1 and exponent.dim() <= 1:
        value = exponent.item()
        whole = float(value).is_integer() and abs(value) < 2**31
        value = int(value) if whole else value
        to.emit("braid.pow", [node.operand(0)], node.output, value=value)
    else:
        to.emit("braid.pow", [node.operand(0), node.operand(1)], node.output)


@lowers("Mod", 10, 28)
def mod(node: Node, to: Builder) -> None:
    """Remainder: of the divisor's sign, or with ``fmod`` of the dividend's."""
    kind = "aten.fmod" if node.flag("fmod") else "aten.remainder"
    to.emit(kind, [node.operand(0), node.operand(1)], node.output)


@lowers("BitShift", 11, 28)
def bit_shift(node: Node, to: Builder) -> None:
    """Shift left or right."""
    direction = node.choice("direction", "", ("LEFT", "RIGHT")).lower()
    to.emit(f"aten.bitwise_{direction}_shift", [node.operand(0), node.operand(1)], node.output)


@lowers("Clip", 6, 13, "bounds may be computed")
def clip(node: Node, to: Builder) -> None:
    """Limit to [min, max]; before opset 11 the bounds are attributes."""
    x = node.operand(0)
    if node.version < 11:
        low = node.real("min", -math.inf)
        high = node.real("max", math.inf)
        to.emit("aten.clamp", [x], node.output, min=_bound(low), max=_bound(high))
        return
    low_value, high_value = node.maybe(1), node.maybe(2)
    if any(value and to.constant(value) is None for value in (low_value, high_value)):
        to.emit("aten.clamp", [x, low_value, high_value], node.output)
        return
    bounds = {"min": to.literal(low_value), "max": to.literal(high_value)}
    bounds = {key: b[0] if isinstance(b, list) else b for key, b in bounds.items()}
    to.emit("aten.clamp", [x], node.output, **bounds)


def _bound(value: float) -> float | None:
    return value if math.isfinite(value) else None


@lowers("LeakyRelu", 6, 16)
def leaky_relu(node: Node, to: Builder) -> None:
    """x where x >= 0, else alpha * x."""
    slope = node.real("alpha", 0.01)
    to.emit("aten.leaky_relu", [node.operand(0)], node.output, negative_slope=slope)


@lowers("Elu", 6, 22)
def elu(node: Node, to: Builder) -> None:
    """x where x >= 0, else alpha * (exp(x) - 1)."""
    to.emit("aten.elu", [node.operand(0)], node.output, alpha=node.real("alpha", 1.0))


@lowers("Celu", 12, 28)
def celu(node: Node, to: Builder) -> None:
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""
    to.emit("aten.celu", [node.operand(0)], node.output, alpha=node.real("alpha", 1.0))


@lowers("Selu", 6, 22)
def selu(node: Node, to: Builder) -> None:
    """Scaled exponential linear unit."""
    alpha = node.real("alpha", 1.6732631921768188)
    gamma = node.real("gamma", 1.0507010221481323)
    to.emit("braid.selu", [node.operand(0)], node.output, alpha=alpha, gamma=gamma)


@lowers("ThresholdedRelu", 10, 22)
def thresholded_relu(node: Node, to: Builder) -> None:
    """x where x > alpha, else 0."""
    alpha = node.real("alpha", 1.0)
    to.emit("braid.thresholded_relu", [node.operand(0)], node.output, alpha=alpha)


@lowers("HardSigmoid", 6, 22)
def hard_sigmoid(node: Node, to: Builder) -> None:
    """max(0, min(1, alpha * x + beta))."""
    alpha, beta = node.real("alpha", 0.2), node.real("beta", 0.5)
    to.emit("braid.hardsigmoid", [node.operand(0)], node.output, alpha=alpha, beta=beta)


@lowers("Shrink", 9, 9)
def shrink(node: Node, to: Builder) -> None:
    """Towards zero by ``bias``, zero within ``lambd``."""
    lambd, bias = node.real("lambd", 0.5), node.real("bias", 0.0)
    to.emit("braid.shrink", [node.operand(0)], node.output, lambd=lambd, bias=bias)


@lowers("Gelu", 20, 20)
def gelu(node: Node, to: Builder) -> None:
    """Gaussian error linear unit."""
    approximate = node.choice("approximate", "none", ("none", "tanh"))
    to.emit("aten.gelu", [node.operand(0)], node.output, approximate=approximate)


@lowers("Swish", 24, 24)
def swish(node: Node, to: Builder) -> None:
    """x * sigmoid(alpha * x)."""
    alpha, x = node.real("alpha", 1.0), node.operand(0)
    if alpha == 1.0:
        to.emit("aten.silu", [x], node.output)
        return
    inner = to.emit("braid.affine", [x], scale=alpha, shift=0.0)
    to.emit("aten.mul", [x, to.emit("aten.sigmoid", [inner])], node.output)


@lowers("Cast", 6, 28, "not to strings, 8-bit floats or 4-bit integers")
def cast(node: Node, to: Builder) -> None:
    """Convert the element type."""
    node.without_effect("saturate", "round_mode")  # of 8-bit floats only
    to.emit("braid.cast", [node.operand(0)], node.output, dtype=dtype_name(node.integer("to")))


@lowers("CastLike", 15, 25)
def cast_like(node: Node, to: Builder) -> None:
    """Convert to the element type of another value."""
    node.without_effect("saturate", "round_mode")
    to.emit("braid.cast_like", [node.operand(0), node.operand(1)], node.output)


@lowers("Identity", 1, 25)
def identity(node: Node, to: Builder) -> None:
    """The operand under another name."""
    to.alias(node.outputs[0], node.operand(0))


@lowers("Dropout", 7, 22, "at inference: the operand; training mode is refused")
def dropout(node: Node, to: Builder) -> None:
    """The operand itself, and a mask of ones."""
    x = node.operand(0)
    node.maybe(1)
    node.without_effect("ratio", "seed")
    training = node.maybe(2)
    if training and to.literal(training) not in (False, [False]):
        raise UnsupportedUse("training_mode")
    if node.wants(1):
        dtype = None if node.version < 10 else "BOOL"
        ones = int(node.version >= 12)  # before, the mask had no meaning at inference
        to.emit("braid.full_like", [x], [node.outputs[1]], value=ones, dtype=dtype)
    if node.wants(0):
        to.alias(node.outputs[0], x)
