"""Folding of padding with zeros into the convolution or pooling that reads it.

pad(x, 1 all round) ─> conv(padding 0)      becomes      conv(padding 1)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from braid.core.graph import Literal, Operator, OpGraph
from braid.engine.passes.body import Weights
from braid.engine.passes.matching import Captures, Op, Upstream, rewrite, rule, value


def _is_off(literal: Literal) -> bool:
    """Whether an attribute is absent, zero or False."""
    return literal in (None, 0, [0])


_PAD = Op("braid.pad", value("x"), name="pad", mode="constant", value=_is_off)


def _with_padding(op: Operator, captures: Captures, upstream: Upstream) -> Operator | None:
    pad, is_pool = upstream.makers[captures["pad"]], op.kind == "braid.avg_pool"
    name, sides = ("pads", 2) if is_pool else ("padding", 1)
    own = op.attributes.get(name)
    if pad.host or not isinstance(own, list):
        return None
    zeros = _zeros(pad.attributes, len(own) // sides)
    if zeros is None or (is_pool and any(own) and not op.attributes.get("count_padding")):
        return None
    total = [x + y for x, y in zip(own, zeros * sides, strict=True) if isinstance(x, int)]
    changed: dict[str, Literal] = {**op.attributes, name: [*total]}
    if is_pool:
        changed["count_padding"] = True
    inputs = captures["x"], *op.inputs[1:]
    return dataclasses.replace(op, inputs=inputs, attributes=changed)


_RULES = (
    rule(Op("aten.convolution", _PAD, transposed=_is_off), _with_padding),
    rule(Op("braid.avg_pool", _PAD, ceil_mode=_is_off), _with_padding),
)


def fold_pads(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """Give convolutions and averages the zeros that a pad puts around their input.

    Only even padding of spatial axes, read once. The pad is left for dead code removal.
    """
    return rewrite(graph, weights, *_RULES)


def _zeros(attributes: Mapping[str, Literal], spatial: int) -> list[int] | None:
    """Zeros that the pad puts on both sides of each of the last axes; None if uneven."""
    pads, axes = attributes.get("pads"), attributes.get("axes")
    if not isinstance(pads, list):
        return None
    count = len(pads) // 2
    named = axes if isinstance(axes, list) else list(range(count))
    if axes is None and count != spatial + 2:
        return None
    amounts = [0] * (spatial + 2)
    for axis, begin, end in zip(named, pads[:count], pads[count:], strict=True):
        if not isinstance(axis, int) or not isinstance(begin, int) or begin != end or begin < 0:
            return None
        amounts[axis] = begin
    return None if any(amounts[:2]) else amounts[2:]
