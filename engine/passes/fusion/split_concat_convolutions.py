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
from braid.engine.passes.body import Body, Weights, everywhere, fresh

_PLAIN, _WITH_SUM = "aten.convolution", "braid.convolution_add"


def convolve_parts(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """Rewrite each convolution that allows it; concatenations are left for dead code removal."""
    return everywhere(_rewrite, graph, weights)


def _rewrite(body: Body, weights: dict[str, Tensor]) -> Body:
    reads, made = body.reads(), body.makers()
    done: list[Operator] = []
    for op in body.operators:
        joined = made.get(op.inputs[0]) if op.kind == _PLAIN else None
        if joined is None or joined.kind != "aten.cat" or reads[op.inputs[0]] != 1:
            done.append(op)
            continue
        channels = _channels(joined, made, weights)
        weight = weights.get(op.inputs[1])
        if channels is None or weight is None or not _pays(op, weight, channels):
            done.append(op)
        else:
            done += _by_parts(op, joined, weight, channels, weights)
    return dataclasses.replace(body, operators=tuple(done))


def _channels(joined: Operator, made: dict[str, Operator], weights: Weights) -> list[int] | None:
    """Channels of each part; None unless convolutions make all parts."""
    makers = [made.get(value) for value in joined.inputs]
    if joined.attributes.get("dim") != 1 or joined.attributes.get(EPILOGUE) or len(makers) < 2:
        return None
    channels = []
    for maker in makers:
        if maker is None or maker.kind not in (_PLAIN, _WITH_SUM):
            return None
        weight = weights.get(maker.inputs[1])
        if weight is None or weight.dim() != 4 or maker.attributes.get("transposed"):
            return None
        channels.append(int(weight.shape[0]))
    return channels


def _pays(op: Operator, weight: Tensor, channels: list[int]) -> bool:
    """True if adding the parts up moves fewer bytes than joining them."""
    fits = weight.dim() == 4 and weight.shape[1] == sum(channels)
    added = 2 * int(weight.shape[0]) * (len(channels) - 1)
    is_plain = not op.attributes.get("transposed") and op.attributes.get("groups", 1) == 1
    return fits and is_plain and added <= sum(channels)


def _by_parts(
    op: Operator,
    joined: Operator,
    weight: Tensor,
    channels: list[int],
    weights: dict[str, Tensor],
) -> list[Operator]:
    """Convolutions of the parts; the last one adds the bias and keeps the name and epilogue."""
    last, first, total = len(channels) - 1, 0, ""
    before = {name: value for name, value in op.attributes.items() if name != EPILOGUE}
    made = []
    for number, (value, count) in enumerate(zip(joined.inputs, channels, strict=True)):
        name = fresh(f"{op.inputs[1]}[{first}:{first + count}]", weights)
        weights[name] = weight[:, first : first + count].contiguous()
        first += count
        bias = (*op.inputs, "")[2] if number == last else ""
        summand = (total,) if number else ()
        made.append(
            dataclasses.replace(
                op,
                name=op.name if number == last else f"{op.name}[{number}]",
                kind=_WITH_SUM if number else _PLAIN,
                inputs=(value, name, bias, *summand),
                outputs=op.outputs if number == last else (f"{op.outputs[0]}[{number}]",),
                attributes=op.attributes if number == last else before,
            )
        )
        total = made[-1].outputs[0]
    return made
