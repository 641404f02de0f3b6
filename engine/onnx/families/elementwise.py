"""Activations and arithmetic, element by element."""

import math

from braid.engine.onnx.builder import Builder, UnsupportedUse
from braid.engine.onnx.lowering_table import lowers, lowers_to
from braid.engine.onnx.node import OnnxNode
from braid.engine.onnx.tensors import dtype_name

# Since-versions, first and last, of unary operators whose kind is aten and the name in lower case.
_UNARY = {
    (1, 22): ("Softsign",),
    (6, 13): (
        *("Abs", "Ceil", "Exp", "Floor", "Log", "Neg", "Reciprocal", "Sigmoid", "Sqrt", "Tanh"),
    ),
    (6, 14): ("Relu",),
    (7, 22): ("Acos", "Asin", "Atan", "Cos", "Sin", "Tan"),
    (9, 13): ("Erf", "Sign"),
    (9, 20): ("IsNaN",),
    (9, 22): ("Acosh", "Asinh", "Atanh", "Cosh", "Sinh"),
    (11, 22): ("Round",),
    (14, 22): ("HardSwish",),
    (18, 22): ("Mish",),
}
for _versions, _names in _UNARY.items():
    for _name in _names:
        lowers_to(f"aten.{_name.lower()}", _name, *_versions)
lowers_to("aten.bitwise_not", "BitwiseNot", 18, 18)
lowers_to("aten.logical_not", "Not", 1, 1)
lowers_to("braid.softplus", "Softplus", 1, 22)

lowers_to("aten.celu", "Celu", 12, 28, alpha=("alpha", 1.0))
lowers_to("aten.elu", "Elu", 6, 22, alpha=("alpha", 1.0))
lowers_to("aten.leaky_relu", "LeakyRelu", 6, 16, negative_slope=("alpha", 0.01))
lowers_to("braid.hardsigmoid", "HardSigmoid", 6, 22, alpha=("alpha", 0.2), beta=("beta", 0.5))
lowers_to("braid.shrink", "Shrink", 9, 9, lambd=("lambd", 0.5), bias=("bias", 0.0))
lowers_to("braid.thresholded_relu", "ThresholdedRelu", 10, 22, alpha=("alpha", 1.0))
lowers_to(
    *("braid.selu", "Selu", 6, 22),
    alpha=("alpha", 1.6732631921768188),
    gamma=("gamma", 1.0507010221481323),
)

for _kind, _name, _first, _last in (
    ("aten.add", "Add", 7, 14),
    ("aten.bitwise_and", "BitwiseAnd", 18, 18),
    ("aten.bitwise_or", "BitwiseOr", 18, 18),
    ("aten.bitwise_xor", "BitwiseXor", 18, 18),
    ("aten.eq", "Equal", 7, 19),
    ("aten.ge", "GreaterOrEqual", 12, 16),
    ("aten.gt", "Greater", 7, 13),
    ("aten.le", "LessOrEqual", 12, 16),
    ("aten.logical_and", "And", 7, 7),
    ("aten.logical_or", "Or", 7, 7),
    ("aten.logical_xor", "Xor", 7, 7),
    ("aten.lt", "Less", 7, 13),
    ("aten.mul", "Mul", 7, 14),
    ("aten.sub", "Sub", 7, 14),
    ("braid.prelu", "PRelu", 7, 16),
):
    lowers_to(_kind, _name, _first, _last, operands=2)
lowers_to("aten.div", "Div", 7, 14, 2, truncate=True)  # of integers, as in C
lowers_to("aten.where", "Where", 9, 16, operands=3)
lowers_to("aten.gelu", "Gelu", 20, 20, approximate=("approximate", ("none", "tanh")))
_OF_8_BIT_FLOATS = ("saturate", "round_mode")
lowers_to(
    *("braid.cast", "Cast", 6, 28),
    ignored=_OF_8_BIT_FLOATS,
    remarks="not to strings, 8-bit floats or 4-bit integers",
    dtype=("to", dtype_name),
)
lowers_to("braid.cast_like", "CastLike", 15, 25, 2, ignored=_OF_8_BIT_FLOATS)
lowers_to(
    *("braid.bit_cast", "BitCast", 26, 26),
    remarks="not to or from strings, 8-bit floats or 4-bit integers",
    dtype=("to", dtype_name),
)
lowers_to(
    *("braid.isinf", "IsInf", 10, 20),
    negative=("detect_negative", True),
    positive=("detect_positive", True),
)


def _enter_variadic(op_type: str, kind: str) -> None:
    @lowers(op_type, 6, 13)
    def variadic(node: OnnxNode, to: Builder) -> None:
        fold(kind, node, to, node.outputs[0])


for _name, _kind in (("Sum", "aten.add"), ("Max", "aten.maximum"), ("Min", "aten.minimum")):
    _enter_variadic(_name, _kind)


def fold(kind: str, node: OnnxNode, to: Builder, output: str) -> str:
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
def mean(node: OnnxNode, to: Builder) -> None:
    total = fold("aten.add", node, to, "")
    to.emit("braid.affine", [total], node.output, scale=1 / node.operands, shift=0.0)


@lowers("Pow", 7, 15)
def power(node: OnnxNode, to: Builder) -> None:
    """Power with the element type of the base."""
    exponent = to.constant(node.operand(1))
    if exponent is not None and exponent.numel() == 1 and exponent.dim() <= 1:
        value = exponent.item()
        whole = float(value).is_integer() and abs(value) < 2**31
        value = int(value) if whole else value
        to.emit("braid.pow", [node.operand(0)], node.output, value=value)
    else:
        to.emit("braid.pow", [node.operand(0), node.operand(1)], node.output)


@lowers("Mod", 10, 28)
def mod(node: OnnxNode, to: Builder) -> None:
    """Remainder: of the divisor's sign, or with ``fmod`` of the dividend's."""
    kind = "aten.fmod" if node.flag("fmod") else "aten.remainder"
    to.emit(kind, [node.operand(0), node.operand(1)], node.output)


@lowers("BitShift", 11, 28)
def bit_shift(node: OnnxNode, to: Builder) -> None:
    direction = node.choice("direction", "", ("LEFT", "RIGHT")).lower()
    to.emit(f"aten.bitwise_{direction}_shift", [node.operand(0), node.operand(1)], node.output)


@lowers("Clip", 6, 13, "bounds may be computed")
def clip(node: OnnxNode, to: Builder) -> None:
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


@lowers("Swish", 24, 24)
def swish(node: OnnxNode, to: Builder) -> None:
    alpha, x = node.real("alpha", 1.0), node.operand(0)
    if alpha == 1.0:
        to.emit("aten.silu", [x], node.output)
        return
    inner = to.emit("braid.affine", [x], scale=alpha, shift=0.0)
    to.emit("aten.mul", [x, to.emit("aten.sigmoid", [inner])], node.output)


@lowers("Identity", 1, 25)
def identity(node: OnnxNode, to: Builder) -> None:
    to.alias(node.outputs[0], node.operand(0))


@lowers("Dropout", 7, 22, "at inference: the operand; training mode is refused")
def dropout(node: OnnxNode, to: Builder) -> None:
    """Name the operand as the output; write a mask of ones if it is read."""
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
