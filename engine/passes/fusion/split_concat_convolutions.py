"""Convolutions of concatenations, part by part: a sum instead of a copy.

    conv(cat(a, b); W)   becomes   conv(a; W_a) + conv(b; W_b)

Only where the concatenation has no other reader and the result has at most half its channels (the
squeezing layers of SqueezeNet): then adding to the result moves less than the copy did. The sum
is fused into the convolutions of the parts after the first one.
"""

from __future__ import annotations

import dataclasses

from torch import Tensor

from braid.core.graph import Operator, OpGraph
from braid.engine.ops.kinds import EPILOGUE
from braid.engine.passes.body import Weights, fresh
from braid.engine.passes.matching import Upstream, rewrite

_PLAIN, _WITH_SUM = "aten.convolution", "braid.convolution_add"


def convolve_parts(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """Rewrite each convolution that allows it; concatenations are left for dead code removal."""
    return rewrite(graph, weights, _convolved)


def _convolved(op: Operator, upstream: Upstream) -> Operator | None:
    joined = upstream.only_read(op.inputs[0], "aten.cat") if op.kind == _PLAIN else None
    channels = _channels(joined, upstream) if joined is not None else None
    weight = upstream.weights.get(op.inputs[1]) if joined is not None else None
    if joined is None or channels is None or weight is None or not _pays(op, weight, channels):
        return None
    return _by_parts(op, joined, weight, channels, upstream)


def _channels(joined: Operator, upstream: Upstream) -> list[int] | None:
    """Channels of each part; None unless convolutions make all parts."""
    if joined.attributes.get("dim") != 1 or joined.attributes.get(EPILOGUE):
        return None
    channels = []
    for value in joined.inputs:
        maker = upstream.makers.get(value)
        if maker is None or maker.kind not in (_PLAIN, _WITH_SUM):
            return None
        weight = upstream.weights.get(maker.inputs[1])
        if weight is None or weight.dim() != 4 or maker.attributes.get("transposed"):
            return None
        channels.append(int(weight.shape[0]))
    return channels if len(channels) > 1 else None


def _pays(op: Operator, weight: Tensor, channels: list[int]) -> bool:
    """True if adding the parts up moves fewer bytes than joining them."""
    fits = weight.dim() == 4 and weight.shape[1] == sum(channels)
    added = 2 * int(weight.shape[0]) * (len(channels) - 1)
    is_plain = not op.attributes.get("transposed") and op.attributes.get("groups", 1) == 1
    return fits and is_plain and added <= sum(channels)


def _by_parts(
    op: Operator, joined: Operator, weight: Tensor, channels: list[int], upstream: Upstream
) -> Operator:
    """Convolutions of the parts; the last one adds the bias and keeps the name and epilogue."""
    before = {name: value for name, value in op.attributes.items() if name != EPILOGUE}
    weights, part, first = upstream.weights, op, 0
    for number, (value, count) in enumerate(zip(joined.inputs, channels, strict=True)):
        name = fresh(f"{op.inputs[1]}[{first}:{first + count}]", weights)
        weights[name] = weight[:, first : first + count].contiguous()
        first += count
        is_last = number == len(channels) - 1
        bias = (*op.inputs, "")[2] if is_last else ""
        inputs = (value, name, bias, *(part.outputs if number else ()))
        part = dataclasses.replace(op, kind=_WITH_SUM if number else _PLAIN, inputs=inputs)
        if not is_last:
            outputs = (f"{op.outputs[0]}[{number}]",)
            part = dataclasses.replace(
                part, name=f"{op.name}[{number}]", outputs=outputs, attributes=before
            )
            upstream.put(part)
    return part
