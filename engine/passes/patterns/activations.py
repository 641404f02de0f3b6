"""Recognising activations that exporters write as several operators.

    x * sigmoid(x)                        silu
    clip(x + 3, 0, 6) / 6                 hardsigmoid, and times x: hardswish
    0.5 * x * (1 + erf(x / sqrt(2)))      gelu

A product is read as a set of factors, however it is bracketed.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from braid.core.graph import Literal, Operator, OpGraph
from braid.engine.passes.body import Body, Weights, everywhere, scalar

_SIXTH = 1 / 6
_CLOSE = 1e-4  # relative: exporters write sqrt(2) and 1/6 with few digits


def recognise_activations(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """Write silu, hardsigmoid, hardswish and gelu (erf) as one operator each.

    Only where nothing else reads the values in between. The parts are left for dead code removal.
    """
    return everywhere(_recognise, graph, weights)


def _recognise(body: Body, weights: dict[str, Tensor]) -> Body:
    done: list[Operator] = []
    seen = _Surroundings({}, body.reads(), weights)
    for op in body.operators:
        found = _activation(op, seen)
        if found is not None:
            kind, value, attributes = found
            op = dataclasses.replace(op, kind=kind, inputs=(value,), attributes=attributes)
        done.append(op)
        seen.makers.update(dict.fromkeys(op.outputs, op))
    return dataclasses.replace(body, operators=tuple(done))


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """Operators and constants around the place of a pattern."""

    makers: dict[str, Operator]
    reads: Counter[str]
    weights: Weights

    def inner(self, value: str, kind: str) -> Operator | None:
        """The operator of ``kind`` that makes ``value`` for one reader only."""
        op = self.makers.get(value)
        plain = op is not None and op.kind == kind and not op.host
        return op if plain and self.reads[value] == 1 else None

    def with_scalar(self, op: Operator) -> tuple[str, float] | None:
        """(other operand, number) of a binary operator with a constant; "" for a sub or div."""
        if len(op.inputs) != 2:
            return None
        left, right = op.inputs
        number = scalar(self.weights, right)
        if number is not None:
            return left, number
        number = scalar(self.weights, left)
        if number is not None and op.kind in ("aten.add", "aten.mul"):
            return right, number
        return None


Found = tuple[str, str, Mapping[str, Literal]]  # kind, operand, attributes


def _activation(op: Operator, seen: _Surroundings) -> Found | None:
    if op.kind not in ("aten.mul", "aten.div") or op.host or len(op.inputs) != 2:
        return None
    if set(op.attributes) - {"truncate"}:
        return None
    number, factors = _factors(op, seen)
    if len(factors) == 1:
        value = _clipped(factors[0], seen)
        if value is not None and _near(number, _SIXTH):
            return "braid.hardsigmoid", value, {"alpha": _SIXTH, "beta": 0.5}
    if len(factors) == 2:
        for x, gate in (factors, factors[::-1]):
            found = _gated(x, gate, number, seen)
            if found is not None:
                return found
    return None


def _gated(x: str, gate: str, number: float, seen: _Surroundings) -> Found | None:
    """``number * x * gate`` where the gate is a function of x."""
    if _near(number, _SIXTH) and _clipped(gate, seen) == x:
        return "aten.hardswish", x, {}
    if _near(number, 0.5) and _one_plus_erf(gate, seen) == x:
        return "aten.gelu", x, {"approximate": "none"}
    if number != 1:
        return None
    op = seen.inner(gate, "aten.sigmoid")
    if op is not None and op.inputs == (x,):
        return "aten.silu", x, {}
    op = seen.inner(gate, "braid.hardsigmoid")
    if op is not None and op.inputs == (x,):
        alpha, beta = op.attributes.get("alpha"), op.attributes.get("beta")
        if isinstance(alpha, float) and _near(alpha, _SIXTH) and beta == 0.5:
            return "aten.hardswish", x, {}
    return None


def _factors(op: Operator, seen: _Surroundings) -> tuple[float, list[str]]:
    """(number, values) whose product ``op`` computes; inner products are opened."""
    number, pending = 1.0, [op]
    values: list[str] = []
    while pending:
        product = pending.pop()
        constant = seen.with_scalar(product)
        if constant is not None and constant[1] != 0:
            operands = [constant[0]]
            number *= constant[1] if product.kind == "aten.mul" else 1 / constant[1]
        elif product.kind == "aten.mul":
            operands = list(product.inputs)
        else:
            return number, [product.outputs[0]]  # a quotient of two values is no product
        for value in operands:
            inner = seen.inner(value, "aten.mul") or seen.inner(value, "aten.div")
            opens = inner is not None and (
                inner.kind == "aten.mul" or seen.with_scalar(inner) is not None
            )
            if inner is not None and opens and len(values) + len(pending) < 4:
                pending.append(inner)
            else:
                values.append(value)
    return number, values


def _clipped(value: str, seen: _Surroundings) -> str | None:
    """x of clip(x + 3, 0, 6)."""
    clamp = seen.inner(value, "aten.clamp")
    if clamp is None or clamp.attributes.get("min") != 0 or clamp.attributes.get("max") != 6:
        return None
    added = seen.inner(clamp.inputs[0], "aten.add") if len(clamp.inputs) == 1 else None
    found = seen.with_scalar(added) if added is not None else None
    return found[0] if found is not None and found[1] == 3 else None


def _one_plus_erf(value: str, seen: _Surroundings) -> str | None:
    """x of 1 + erf(x / sqrt(2))."""
    added = seen.inner(value, "aten.add")
    found = seen.with_scalar(added) if added is not None else None
    erf = seen.inner(found[0], "aten.erf") if found is not None and found[1] == 1 else None
    if erf is None:
        return None
    scaled = seen.inner(erf.inputs[0], "aten.div") or seen.inner(erf.inputs[0], "aten.mul")
    found = seen.with_scalar(scaled) if scaled is not None else None
    if scaled is None or found is None or found[1] == 0:
        return None
    scale = found[1] if scaled.kind == "aten.mul" else 1 / found[1]
    return found[0] if _near(scale, math.sqrt(0.5)) else None


def _near(number: float, target: float) -> bool:
    return abs(number - target) <= _CLOSE * target
