"""Elementwise kinds: activations, arithmetic with broadcasting, casts, logic, selection."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from braid.engine.ops.dtypes import torch_dtype
from braid.engine.ops.kinds import WEIGHTED_SUM, operator
from braid.engine.ops.value_ranges import divisors, is_readable

Run = Callable[..., Tensor]

_NARROW = frozenset({torch.uint16, torch.uint32})
_SIGN = -(1 << 63)
_ORDERED = frozenset({"lt", "le", "gt", "ge", "maximum", "minimum"})


def with_unsigned(name: str, run: Run) -> Run:
    """Extend ``run``, torch's function of that name, to unsigned integers that torch refuses.

    Up to 32 bits the numbers fit into INT64. 64-bit ones keep their bits: sums, differences and
    products are the same for both signs, comparisons are once the sign bit is flipped, and
    quotients come from halved operands.
    """

    def extended(a: Tensor, *rest: Tensor, **options: Any) -> Tensor:
        if a.dtype in _NARROW:
            result = run(a.long(), *(b.long() for b in rest), **options)
            return result if result.dtype == torch.bool else result.to(a.dtype)
        if a.dtype == torch.uint64:
            return _on_bits(name, run, a, rest, options)
        return run(a, *rest, **options)

    return extended


def _on_bits(name: str, run: Run, a: Tensor, rest: tuple[Tensor, ...], options: Any) -> Tensor:
    x, *others = (operand.view(torch.int64) for operand in (a, *rest))
    if name in _ORDERED:
        result = run(x ^ _SIGN, others[0] ^ _SIGN)
        return result if result.dtype == torch.bool else _unsigned(result ^ _SIGN)
    if name == "bitwise_right_shift":
        return _unsigned(_shifted_right(x, others[0]))
    if name == "div":
        return _unsigned(_quotient(x, others[0]))
    if name in ("remainder", "fmod"):
        return _unsigned(x - _quotient(x, others[0]) * others[0])
    result = run(x, *others, **options)
    return result if result.dtype == torch.bool else _unsigned(result)


def _unsigned(x: Tensor) -> Tensor:
    return x.view(torch.uint64)


def _shifted_right(x: Tensor, places: Tensor) -> Tensor:
    """Shift right, zeros coming in at the sign bit."""
    once = (x >> 1) & ~_SIGN
    return torch.where(places == 0, x, once >> (places - 1).clamp_min(0))


def _quotient(x: Tensor, by: Tensor) -> Tensor:
    """Rounded down; a divisor with the top bit gives 0 or 1; ``ZeroDivisionError`` on CPUs."""
    if is_readable(by) and not bool(by.all()):
        raise ZeroDivisionError("division by zero")
    halved = torch.div((x >> 1) & ~_SIGN, torch.where(by > 0, by, 1), rounding_mode="floor") * 2
    left = x - halved * by
    fits = ((left ^ _SIGN) >= (by ^ _SIGN)).long()
    return torch.where(by < 0, ((x ^ _SIGN) >= (by ^ _SIGN)).long(), halved + fits)


# Kinds that are exactly torch's function of that name, with its arguments as attributes.
TORCH_UNARY = (
    *("relu", "sigmoid", "tanh", "erf", "exp", "log", "sqrt", "rsqrt"),
    *("reciprocal", "abs", "neg", "sign", "floor", "ceil", "round"),
    *("sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "asinh", "acosh", "atanh"),
)
_ACTIVATIONS = ("hardswish", "silu", "mish", "leaky_relu", "elu", "celu", "softsign", "gelu")
_BINARY = (
    *("add", "sub", "mul", "maximum", "minimum"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift"),
)
for _name in TORCH_UNARY:
    operator(f"aten.{_name}", pointwise=True)(getattr(torch, _name))
for _name in _ACTIVATIONS:
    operator(f"aten.{_name}", pointwise=True)(getattr(F, _name))
for _name in _BINARY:
    operator(f"aten.{_name}")(with_unsigned(_name, getattr(torch, _name)))
for _name in ("remainder", "fmod"):
    _run = with_unsigned(_name, getattr(torch, _name))
    operator(f"aten.{_name}", values=divisors, fails=True)(_run)
operator("aten.bitwise_not")(with_unsigned("bitwise_not", torch.bitwise_not))


@operator("braid.identity")
def identity(x: Tensor) -> Tensor:
    return x


@operator(WEIGHTED_SUM)
def weighted_sum(*terms: Tensor, weights: Sequence[float]) -> Tensor:
    """Sum of tensors of one shape, each times a number; in fp32 at least, rounded once."""
    first = terms[0]
    wide = torch.promote_types(first.dtype, torch.float32)
    total = first.to(wide) * weights[0]
    for term, weight in zip(terms[1:], weights[1:], strict=True):
        total = total + term.to(wide) * weight
    return total.to(first.dtype)


@operator("aten.clamp", pointwise=True)
def clamp(
    x: Tensor,
    lower: Tensor | None = None,
    upper: Tensor | None = None,
    *,
    min: float | None = None,
    max: float | None = None,
) -> Tensor:
    """Limit x to bounds: attributes or, where the model computes them, scalar operands."""
    low, high = (min if lower is None else lower), (max if upper is None else upper)
    if low is not None:
        x = torch.clamp(x, min=low)
    if high is not None:
        x = torch.clamp(x, max=high)
    return x


@operator("braid.hardsigmoid", pointwise=True)
def hardsigmoid(x: Tensor, alpha: float, beta: float) -> Tensor:
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return F.hardsigmoid(x)
    return torch.clamp(x * alpha + beta, 0, 1)


@operator("braid.softplus", pointwise=True)
def softplus(x: Tensor) -> Tensor:
    """Compute log(1 + exp(x)), without torch's straight line for large x."""
    return torch.logaddexp(x, torch.zeros_like(x))


@operator("braid.selu", pointwise=True)
def selu(x: Tensor, alpha: float, gamma: float) -> Tensor:
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(x))


@operator("braid.thresholded_relu", pointwise=True)
def thresholded_relu(x: Tensor, alpha: float) -> Tensor:
    return torch.where(x > alpha, x, torch.zeros_like(x))


@operator("braid.shrink", pointwise=True)
def shrink(x: Tensor, lambd: float, bias: float) -> Tensor:
    """Pull values towards zero by ``bias``; zero within ``lambd`` of it."""
    inner = torch.where(x > lambd, x - bias, torch.zeros_like(x))
    return torch.where(x < -lambd, x + bias, inner).to(x.dtype)


@operator("braid.affine", pointwise=True)
def affine(x: Tensor, scale: float, shift: float) -> Tensor:
    return (x * scale + shift).to(x.dtype)


@operator("braid.prelu")
def prelu(x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x < 0, x * slope, x)


def _divide(a: Tensor, b: Tensor) -> Tensor:
    """Divide integers as in C, but the least number by -1 gives itself, not a SIGFPE."""
    if a.dtype in _TRAPPING and is_readable(b) and bool((b == -1).any()):
        return torch.where(
            b == -1, -a, torch.div(a, b.masked_fill(b == -1, 1), rounding_mode="trunc")
        )
    return torch.div(a, b, rounding_mode="trunc")


_TRAPPING = frozenset({torch.int32, torch.int64})  # processors trap at their least number by -1

_truncated = with_unsigned("div", _divide)


@operator("aten.div", values=divisors, fails=True)
def div(a: Tensor, b: Tensor, truncate: bool = False) -> Tensor:
    """True division; with ``truncate``, integers divide as in C."""
    if truncate and not a.is_floating_point():
        return _truncated(a, b)
    return torch.div(a, b)


@operator("braid.pow")
def power(base: Tensor, exponent: Tensor | None = None, *, value: float | None = None) -> Tensor:
    """Power in the element type of the base; a constant exponent is the attribute ``value``."""
    if exponent is None:
        return torch.pow(base, value).to(base.dtype)  # type: ignore[arg-type]
    return torch.pow(base, exponent).to(base.dtype)


@operator("braid.cast")
def cast(x: Tensor, dtype: str) -> Tensor:
    """Convert; floats go to integers towards zero."""
    return x.to(torch_dtype(dtype))


@operator("braid.bit_cast")
def bit_cast(x: Tensor, dtype: str) -> Tensor:
    kind = torch_dtype(dtype)
    if kind.itemsize != x.dtype.itemsize:
        raise ValueError(f"{x.dtype} and {kind} differ in size")
    return x.view(kind)


@operator("braid.cast_like")
def cast_like(x: Tensor, target: Tensor) -> Tensor:
    return x.to(target.dtype)


_SAME_AS_TORCH = (
    *("eq", "lt", "le", "gt", "ge", "isnan"),
    *("logical_and", "logical_or", "logical_xor", "logical_not"),
)
for _name in _SAME_AS_TORCH:
    operator(f"aten.{_name}")(with_unsigned(_name, getattr(torch, _name)))
operator("aten.where")(torch.where)


@operator("braid.isinf")
def isinf(x: Tensor, negative: bool = True, positive: bool = True) -> Tensor:
    if negative and positive:
        return torch.isinf(x)
    if positive:
        return torch.isposinf(x)
    if negative:
        return torch.isneginf(x)
    return torch.zeros_like(x, dtype=torch.bool)
