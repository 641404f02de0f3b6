"""Arithmetic on 16-, 32- and 64-bit unsigned integers, for which torch has no kernels.

Up to 32 bits the numbers fit into INT64. 64-bit ones keep their bits: sums, differences and
products are the same for both signs, comparisons are once the sign bit is flipped, and quotients
come from halved operands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from braid.engine.ops.value_ranges import is_readable

Run = Callable[..., Tensor]

_NARROW = frozenset({torch.uint16, torch.uint32})
_SIGN = -(1 << 63)
_ORDERED = frozenset({"lt", "le", "gt", "ge", "maximum", "minimum"})


def with_unsigned(name: str, run: Run) -> Run:
    """Extend ``run``, torch's function of that name, to unsigned integers that torch refuses."""

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
