"""Folding of padding with zeros into the convolution or pooling that reads it.

pad(x, 1 all round) ─> conv(padding 0)      becomes      conv(padding 1)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import Tensor

from braid.core.graph import Literal, Operator, OpGraph
from braid.engine.passes.body import Body, Weights, everywhere


def fold_pads(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """Give convolutions and averages the zeros that a pad puts around their input.

    Only even padding of spatial axes, read once. The pad is left for dead code removal.
    """
    return everywhere(_fold_pads, graph, weights)


def _fold_pads(body: Body, weights: dict[str, Tensor]) -> Body:
    reads, made = body.reads(), body.makers()
    done = []
    for op in body.operators:
        pad = made.get(op.inputs[0]) if op.inputs and op.inputs[0] else None
        if pad is not None and pad.kind == "braid.pad" and reads[op.inputs[0]] == 1:
            op = _with_padding(op, pad) or op
        done.append(op)
    return dataclasses.replace(body, operators=tuple(done))


def _with_padding(op: Operator, pad: Operator) -> Operator | None:
    if op.host or pad.host or "epilogue" in pad.attributes:
        return None
    if op.kind == "aten.convolution" and not op.attributes.get("transposed"):
        own = op.attributes.get("padding")
        before = _zeros(pad.attributes, len(own)) if isinstance(own, list) else None
        if before is None or not isinstance(own, list):
            return None
        changed: dict[str, Literal] = {"padding": _sum(own, before)}
    elif op.kind == "braid.avg_pool":
        own, counted = op.attributes.get("pads"), op.attributes.get("count_padding")
        if not isinstance(own, list) or op.attributes.get("ceil_mode"):
            return None
        before = _zeros(pad.attributes, len(own) // 2)
        if before is None or not (counted or not any(own)):
            return None
        changed = {"pads": _sum(own, before + before), "count_padding": True}
    else:
        return None
    return dataclasses.replace(
        op, inputs=(*pad.inputs[:1], *op.inputs[1:]), attributes={**op.attributes, **changed}
    )


def _sum(a: list[Literal], b: list[int]) -> Literal:
    return [x + y for x, y in zip(a, b, strict=True) if isinstance(x, int)]


def _zeros(attributes: Mapping[str, Literal], spatial: int) -> list[int] | None:
    """Zeros that the pad puts on both sides of each of the last axes; None if uneven."""
    pads, axes = attributes.get("pads"), attributes.get("axes")
    value = attributes.get("value")
    zero = value in (None, 0, 0.0, [0], [0.0])
    if attributes.get("mode") != "constant" or not zero or not isinstance(pads, list):
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
