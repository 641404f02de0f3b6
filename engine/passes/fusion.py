"""Fusion of operators into one schedule unit, so that the scheduler decides about units that are
worth a kernel launch.

Epilogues: an operator takes in the activations after it.

    conv ──> add(bias, folded) ──> relu       conv {epilogue: [["aten.relu"]]}

Residual sums, in a static graph: a convolution or linear layer takes in the sum after it. Only
where the other summand is computed before the fused unit could start anyway (one of its ancestors
makes it), so that fusing never takes away a unit that could run beside another.

    x ─> conv1 ─> relu ─> conv2 ─> add ─> relu        x ─> conv1 ─> relu ─> conv2 + add + relu
    └──────────────────────────────┘                  └──────────────────────┘

Convolutions of concatenations, part by part: a sum instead of a copy. Only where the concatenation
has no other reader and the result has at most half its channels (the squeezing layers of
SqueezeNet): then adding to the result moves less than the copy did. The sum is fused into the
convolutions of the parts after the first one.

    conv(cat(a, b); W)   becomes   conv(a; W_a) + conv(b; W_b)

Sums of multiples, in a static graph. Nodes of RandWire and of feature pyramids sum their inputs so:
several passes over memory become one. The unit stands where the last sum did.

    x ─> mul 0.4 ─┐
    y ─> mul 0.6 ─┴─> add ─┐            x, y, z ─> weighted_sum [0.4, 0.6, 1] + relu
    z ─────────────────────┴─> add ─> relu
"""

import dataclasses
from collections.abc import Mapping
from functools import partial

from torch import Tensor

from braid.core.graph import WEIGHTS, Literal, Operator, OpGraph
from braid.engine.ops.kinds import EPILOGUE, OPS, WEIGHTED_SUM, WITH_SUM
from braid.engine.passes.affine import scale_and_shift
from braid.engine.passes.attention import FLOATS
from braid.engine.passes.body import Weights, fresh, scalar
from braid.engine.passes.matching import Upstream, rewrite, rewrite_static

_LINEAR = "aten.linear"
_ROOTS = frozenset(
    {
        *("aten.convolution", "braid.conv_transpose_to"),
        *(_LINEAR, "aten.matmul"),
        *("aten.add", "aten.sub", "aten.mul", "aten.div", "aten.maximum", "aten.minimum"),
        *("aten.batch_norm", "aten.layer_norm", "braid.instance_norm", "braid.group_norm"),
        *("braid.rms_norm", "braid.prelu"),
    }
)


def fuse_epilogues(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """Only where the value in between has one reader and is no output of the graph.

    A product, sum or quotient with a floating-point number counts as unary.
    """
    return rewrite(graph, weights, _with_step)


def _with_step(op: Operator, upstream: Upstream) -> Operator | None:
    """The root of a chain with another step; it keeps its name and place."""
    operand, step = _as_step(op, upstream.weights) or ("", [])
    root = upstream.only_read(operand)
    if root is None or root.branches or len(root.outputs) != 1:
        return None
    if root.kind not in _ROOTS and not OPS[root.kind].pointwise:
        return None
    before = root.attributes.get(EPILOGUE, [])
    assert isinstance(before, list)
    attributes = {**root.attributes, EPILOGUE: [*before, step]}
    return dataclasses.replace(root, outputs=op.outputs[:1], attributes=attributes)


def _as_step(op: Operator, weights: Weights) -> tuple[str, list[Literal]] | None:
    """(operand, epilogue step) of an operator that is unary and pointwise; else None."""
    if op.host or op.branches or EPILOGUE in op.attributes:
        return None
    operands = [name for name in op.inputs if name]
    if op.kind in OPS and OPS[op.kind].pointwise and len(operands) == 1 and len(op.outputs) == 1:
        pairs = [part for pair in op.attributes.items() for part in pair]
        return operands[0], [op.kind, *pairs]
    return _scale_or_shift(op, weights)


def _scale_or_shift(op: Operator, weights: Weights) -> tuple[str, list[Literal]] | None:
    if len(op.inputs) != 2 or set(op.attributes) - {"truncate"}:
        return None
    for position, other in ((0, op.inputs[1]), (1, op.inputs[0])):
        number = scalar(weights, other)
        if number is None or (number == 0 and op.kind == "aten.div"):
            continue
        if (affine := scale_and_shift(op.kind, position, number, 1.0)) is not None:
            return op.inputs[position], ["braid.affine", "scale", affine[0], "shift", affine[1]]
    return None


def fuse_flat_linears(graph: OpGraph, constants: Weights) -> OpGraph:
    """Drop reshapes that only join axes before a linear layer and part them again behind it.

    GPT-2's exporters write layers so; activations behind them are fused then.
    """
    return rewrite_static(graph, constants, partial(_in_all_axes, graph), _activated)


def _in_all_axes(graph: OpGraph, op: Operator, upstream: Upstream) -> Operator | None:
    linear = upstream.only_read(op.inputs[0], _LINEAR) if op.kind == "braid.reshape" else None
    joined = None if linear is None else upstream.makers.get(linear.inputs[0])
    if linear is None or joined is None or joined.kind != "braid.reshape":
        return None
    if any(EPILOGUE in each.attributes for each in (op, joined)):
        return None
    shape, source = (graph.spec(name).shape for name in (op.outputs[0], joined.inputs[0]))
    inside, result = (graph.spec(name).shape[-1] for name in (linear.inputs[0], op.inputs[0]))
    if shape != (*source[:-1], result) or source[-1:] != (inside,):
        return None
    inputs = (joined.inputs[0], *linear.inputs[1:])
    return dataclasses.replace(linear, inputs=inputs, outputs=op.outputs)


def _activated(op: Operator, upstream: Upstream) -> Operator | None:
    root = _with_step(op, upstream)
    return root if root is not None and root.kind == _LINEAR else None


def fuse_residuals(graph: OpGraph) -> OpGraph:
    """Fuse each sum that allows it; the units keep the names of their convolutions."""
    return rewrite_static(graph, {}, partial(_with_residual, graph))


def _with_residual(graph: OpGraph, op: Operator, upstream: Upstream) -> Operator | None:
    if not is_sum(op, graph):
        return None
    for data, other in (op.inputs, op.inputs[::-1]):
        producer = upstream.only_read(data, *WITH_SUM)
        if producer is None or not upstream.is_ready(other, producer):
            continue
        if EPILOGUE not in producer.attributes and not producer.attributes.get("transposed"):
            return _with_sum(producer, op, other)
    return None


def is_sum(op: Operator, graph: OpGraph) -> bool:
    """Whether ``op`` adds two tensors of the output's shape, and does nothing but its epilogue."""
    if op.kind != "aten.add" or set(op.attributes) - {EPILOGUE}:
        return False
    left, right = op.inputs
    return left != right and graph.spec(left) == graph.spec(right) == graph.spec(op.outputs[0])


def _with_sum(producer: Operator, total: Operator, other: str) -> Operator:
    data, weight, bias = (*producer.inputs, "")[:3]
    epilogue = {name: total.attributes[name] for name in (EPILOGUE,) if name in total.attributes}
    return dataclasses.replace(
        producer,
        kind=WITH_SUM[producer.kind],
        inputs=(data, weight, bias, other),
        outputs=total.outputs,
        attributes={**producer.attributes, **epilogue},
    )


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


MAX_TERMS = 8
MAX_WEIGHT = 2.0**10  # least is its inverse: kernels carry quotients of two weights

Terms = list[tuple[str, float]]


def fuse_weighted_sums(graph: OpGraph, constants: Mapping[str, Tensor]) -> OpGraph:
    """Products and sums in between are taken up where nothing else reads them."""
    return rewrite_static(graph, constants, partial(_weighted, graph))


def _weighted(graph: OpGraph, op: Operator, upstream: Upstream) -> Operator | None:
    if not is_sum(op, graph) or graph.spec(op.outputs[0]).dtype not in FLOATS:
        return None
    left, right = (_terms(value, graph, upstream) for value in op.inputs)
    if len(left) + len(right) > MAX_TERMS:  # then the longer one stays a unit
        whole: list[Terms] = [[(name, 1.0)] for name in op.inputs]
        left, right = (whole[0], right) if len(left) > len(right) else (left, whole[1])
    terms = left + right
    if len(terms) > MAX_TERMS or all(weight == 1 for _, weight in terms):
        return None
    inputs, weights = tuple(name for name, _ in terms), [weight for _, weight in terms]
    attributes: dict[str, Literal] = {**op.attributes, WEIGHTS: [*weights]}
    return dataclasses.replace(op, kind=WEIGHTED_SUM, inputs=inputs, attributes=attributes)


def _terms(value: str, graph: OpGraph, upstream: Upstream) -> Terms:
    """Terms that a value is the sum of: itself, if it is no sum or cannot be taken up."""
    op = upstream.only_read(value, WEIGHTED_SUM, "aten.mul", "aten.add")
    if op is None or EPILOGUE in op.attributes or op.host:
        return [(value, 1.0)]
    if op.kind == WEIGHTED_SUM:
        return list(zip(op.inputs, weights_of(op), strict=True))
    if op.kind == "aten.mul" and not op.attributes:
        return _multiple(op, graph, upstream.weights) or [(value, 1.0)]
    return [(name, 1.0) for name in (op.inputs if is_sum(op, graph) else [value])]


def _multiple(op: Operator, graph: OpGraph, constants: Mapping[str, Tensor]) -> Terms | None:
    """Read a product of a tensor with a number; None for any other product."""
    for data, factor in (op.inputs, op.inputs[::-1]):
        weight = scalar(constants, factor)
        if weight is None or not 1 / MAX_WEIGHT <= abs(weight) <= MAX_WEIGHT:
            continue
        if data not in graph.constants and graph.spec(data) == graph.spec(op.outputs[0]):
            return [(data, weight)]
    return None


def weights_of(op: Operator) -> list[float]:
    weights = op.attributes[WEIGHTS]
    assert isinstance(weights, list)
    return [float(str(weight)) for weight in weights]
