"""Recognising normalisations that exporters write as several operators.

    x / sqrt(mean(x^2) + eps) * w                         rms_norm
    d = x - mean(x);  d / sqrt(mean(d^2) + eps) * w + b   layer_norm

over the last axis. 1 / sqrt(y) becomes rsqrt on the way, and wherever else it stands.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from braid.core.graph import Literal, Operator, OpGraph
from braid.engine.passes.body import Body, Weights, everywhere, scalar


def recognise_norms(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """Write rsqrt, rms_norm and layer_norm as one operator each.

    Only where nothing else reads the values in between. The parts are left for dead code removal.
    """
    return everywhere(_recognise, graph, weights)


def _recognise(body: Body, weights: dict[str, Tensor]) -> Body:
    seen = _Seen({}, body.reads(), weights)
    done = []
    for op in body.operators:
        found = _rsqrt(op, seen) or _scaled(op, seen) or _shifted(op, seen)
        if found is not None:
            op = found
        done.append(op)
        seen.makers.update(dict.fromkeys(op.outputs, op))
    return dataclasses.replace(body, operators=tuple(done))


@dataclass(frozen=True, slots=True)
class _Seen:
    """Operators and constants before the place of a pattern."""

    makers: dict[str, Operator]
    reads: Counter[str]
    weights: Weights

    def made(self, value: str, *kinds: str, readers: int = 1) -> Operator | None:
        """The operator of one of these kinds that makes ``value`` for that many readers."""
        op = self.makers.get(value)
        if op is None or op.kind not in kinds or op.host or op.branches:
            return None
        return op if self.reads[value] == readers and "epilogue" not in op.attributes else None

    def vector(self, value: str) -> bool:
        """True for a constant along the last axis."""
        tensor = self.weights.get(value)
        return tensor is not None and tensor.dim() == 1 and tensor.is_floating_point()


def _replaced(op: Operator, kind: str, inputs: tuple[str, ...], **attributes: Literal) -> Operator:
    return dataclasses.replace(op, kind=kind, inputs=inputs, attributes=attributes)


def _rsqrt(op: Operator, seen: _Seen) -> Operator | None:
    """1 / sqrt(y), or the reciprocal of sqrt(y)."""
    if op.host or "epilogue" in op.attributes:
        return None
    if op.kind == "aten.div" and len(op.inputs) == 2:
        one = seen.weights.get(op.inputs[0])
        if one is None or one.dim() > 0 or scalar(seen.weights, op.inputs[0]) != 1:
            return None
        value = op.inputs[1]
    elif op.kind == "aten.reciprocal":
        value = op.inputs[0]
    else:
        return None
    root = seen.made(value, "aten.sqrt")
    return None if root is None else _replaced(op, "aten.rsqrt", root.inputs)


def _scaled(op: Operator, seen: _Seen) -> Operator | None:
    """``normalised * weight``: an rms_norm, or a layer_norm without its bias."""
    if op.kind != "aten.mul" or op.host or op.attributes:
        return None
    for normalised, weight in (op.inputs, op.inputs[::-1]):
        if not seen.vector(weight):
            continue
        found = _normalised(normalised, seen)
        if found is None:
            continue
        x, eps = found
        centred = seen.made(x, "aten.sub", readers=2)
        source = _centred(centred, seen) if centred is not None else None
        if source is not None:
            return _replaced(op, "aten.layer_norm", (source, weight, ""), axis=-1, eps=eps)
        return _replaced(op, "braid.rms_norm", (x, weight), axis=-1, eps=eps)
    return None


def _shifted(op: Operator, seen: _Seen) -> Operator | None:
    """A layer_norm without a bias, and the bias."""
    if op.kind != "aten.add" or op.host or op.attributes:
        return None
    for value, bias in (op.inputs, op.inputs[::-1]):
        norm = seen.made(value, "aten.layer_norm")
        if norm is None or not seen.vector(bias) or any(norm.inputs[2:]):
            continue
        if not norm.inputs[1] or seen.weights[bias].shape != seen.weights[norm.inputs[1]].shape:
            continue
        inputs = (*norm.inputs[:2], bias)
        return _replaced(op, "aten.layer_norm", inputs, **dict(norm.attributes))
    return None


def _normalised(value: str, seen: _Seen) -> tuple[str, float] | None:
    """(x, eps) of x * rsqrt(mean(x^2) + eps), or of x / sqrt(mean(x^2) + eps)."""
    op = seen.made(value, "aten.mul", "aten.div")
    if op is None or len(op.inputs) != 2 or set(op.attributes) - {"truncate"}:
        return None
    pairs = [op.inputs] if op.kind == "aten.div" else [op.inputs, op.inputs[::-1]]
    for x, factor in pairs:
        root = seen.made(factor, "aten.sqrt" if op.kind == "aten.div" else "aten.rsqrt")
        eps = _mean_of_squares(root.inputs[0], x, seen) if root is not None else None
        if eps is not None:
            return x, eps
    return None


def _mean_of_squares(value: str, x: str, seen: _Seen) -> float | None:
    """eps of mean(x^2) + eps over the last axis."""
    added = seen.made(value, "aten.add")
    if added is None or added.attributes:
        return None
    for mean_value, number in (added.inputs, added.inputs[::-1]):
        eps = scalar(seen.weights, number)
        mean = seen.made(mean_value, "aten.mean")
        if eps is None or mean is None or not _over_last_axis(mean.attributes):
            continue
        square = seen.made(mean.inputs[0], "braid.pow", "aten.mul", "aten.square")
        if square is None or set(square.inputs) != {x}:
            continue
        if square.kind == "braid.pow" and square.attributes.get("value") != 2:
            continue
        return eps
    return None


def _over_last_axis(attributes: Mapping[str, Literal]) -> bool:
    kept = {key: value for key, value in attributes.items() if key != "noop"}
    return kept == {"dims": [-1], "keepdim": True}


def _centred(op: Operator, seen: _Seen) -> str | None:
    """x of x - mean(x) over the last axis."""
    if op.attributes or len(op.inputs) != 2:
        return None
    x, mean_value = op.inputs
    mean = seen.made(mean_value, "aten.mean")
    if mean is None or mean.inputs != (x,) or not _over_last_axis(mean.attributes):
        return None
    return x
