"""Folding of constants, concatenations, padding and views.

operators on constants                        evaluated once, at import
cat(cat(a, b), c)                             cat(a, b, c): same axis, the inner one read once
pad(x, 1 all round) ─> conv(padding 0)        conv(padding 1)
average ─> flatten; permute ─> permute; ...   one operator
gather of every slice in its order            reshape
"""

import dataclasses
import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from braid.core.errors import InvalidRequest
from braid.core.graph import Literal, Operator, OpGraph
from braid.engine.ops.evaluation import attempt, meta_like
from braid.engine.ops.families.indexing import flat_places
from braid.engine.ops.families.quantised_unit import DEQUANTISE
from braid.engine.ops.kinds import EPILOGUE
from braid.engine.passes.body import Body, Weights, everywhere
from braid.engine.passes.matching import (
    Captures,
    Op,
    Upstream,
    either,
    rewrite,
    rewrite_static,
    rule,
    value,
)

_FREE_BYTES = 1 << 20  # results up to this size are folded whatever they come from
_MAX_HOST_ELEMENTS = 4096


def fold_constants(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """Evaluate operators whose operands are all known, and turn known host operands to attributes.

    Budget: a result larger than both 1 MiB and the constants it comes from (an Expand, a
    ConstantOfShape) is left to run time, so folding never makes a model much larger. Sizes are
    found on meta tensors before anything is allocated. Operators that make a graph output stay.
    """
    return everywhere(_fold, graph, weights)


def _fold(body: Body, weights: dict[str, Tensor]) -> Body:
    kept = []
    for op in (_host_to_attributes(op, weights) for op in body.operators):
        values = None
        if not (body.top and set(op.outputs) & set(body.results)):
            values = _evaluate(op, weights)
        if values is None:
            kept.append(op)
        else:
            weights.update(zip(op.outputs, values, strict=True))
    return dataclasses.replace(body, operators=tuple(kept))


def _host_to_attributes(op: Operator, weights: Weights) -> Operator:
    contents: dict[str, Literal] = {
        attribute: weights[value].tolist()
        for attribute, value in op.host.items()
        if value in weights and weights[value].numel() <= _MAX_HOST_ELEMENTS and not op.branches
    }
    if not contents:
        return op
    host = {attribute: value for attribute, value in op.host.items() if attribute not in contents}
    return dataclasses.replace(op, attributes={**op.attributes, **contents}, host=host)


def _evaluate(op: Operator, weights: Weights) -> tuple[Tensor, ...] | None:
    """Outputs, None if unknown or too large; weights that the lowering left in integers stay so."""
    if (
        op.kind == DEQUANTISE
        or op.host
        or op.branches
        or any(name and name not in weights for name in op.inputs)
    ):
        return None
    operands = [weights[name] if name else None for name in op.inputs]
    budget = max(_FREE_BYTES, sum(t.nbytes for t in operands if t is not None))
    try:
        shapes = attempt(op, [None if t is None else meta_like(t) for t in operands])
        if sum(tensor.nbytes for tensor in shapes) > budget:
            return None
        results = attempt(op, operands, "cpu")
    except InvalidRequest:
        return None  # it fails, or its shape depends on content: run time will tell
    return tuple(result.contiguous().clone() for result in results)


_CAT = "aten.cat"


def flatten_concats(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """Join nested concatenations along one axis. The inner ones are left for dead code removal."""
    return rewrite(graph, weights, _flattened)


def _flattened(op: Operator, upstream: Upstream) -> Operator | None:
    if op.kind != _CAT or EPILOGUE in op.attributes:
        return None
    parts: list[str] = []
    for name in op.inputs:
        inner = upstream.only_read(name, _CAT)
        parts += inner.inputs if inner and inner.attributes == op.attributes else (name,)
    return dataclasses.replace(op, inputs=tuple(parts))


def _is_off(literal: Literal) -> bool:
    return literal in (None, 0, [0])


_PAD = Op("braid.pad", value("x"), name="pad", mode="constant", value=_is_off)


def _with_padding(op: Operator, captures: Captures, upstream: Upstream) -> Operator | None:
    pad, is_pool = upstream.makers[captures["pad"]], op.kind == "braid.avg_pool"
    name, sides = ("pads", 2) if is_pool else ("padding", 1)
    padding = op.attributes.get(name)
    if pad.host or not isinstance(padding, list):
        return None
    zeros = _zeros(pad.attributes, len(padding) // sides)
    if zeros is None or (is_pool and any(padding) and not op.attributes.get("count_padding")):
        return None
    total = [x + y for x, y in zip(padding, zeros * sides, strict=True) if isinstance(x, int)]
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
    """Only even padding of spatial axes, read once. The pad is left for dead code removal."""
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


_X = value("x")
_POOL = Op("braid.global_avg_pool", _X, name="pool")
_FLAT = either(
    Op("braid.flatten", _POOL, axis=lambda axis: axis in (None, 1)),
    Op("braid.reshape", _POOL, shape=[0, -1]),
)


def fold_pooled_views(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """Write a global average followed by a flatten as one ``mean`` that drops the axes."""
    return rewrite(graph, weights, rule(_FLAT, _mean))


def _mean(op: Operator, captures: Captures, upstream: Upstream) -> Operator | None:
    """The mean has the name and place of the average."""
    pool, rank = upstream.makers[captures["pool"]], upstream.ranks.get(captures["x"])
    if rank is None:
        return None
    attributes: dict[str, Literal] = {"dims": [*range(2, rank)], "keepdim": False}
    return Operator(pool.name, "aten.mean", pool.inputs, op.outputs, attributes)


_PERMUTED = Op("aten.permute", Op("aten.permute", _X, name="inner"))
_RESHAPES = ("braid.reshape", "braid.flatten", "braid.squeeze", "braid.unsqueeze")
_RESHAPED = Op("braid.reshape", either(*(Op(kind, _X) for kind in _RESHAPES)))


def fold_gathers(graph: OpGraph, constants: Weights) -> OpGraph:
    """torch's exporter writes masks of attention so: a gather of 64 elements took 160 us."""
    return rewrite_static(graph, constants, partial(_gathered, graph))


def _gathered(graph: OpGraph, op: Operator, upstream: Upstream) -> Operator | None:
    indices = upstream.weights.get(op.inputs[1]) if op.kind == "braid.gather_nd" else None
    if indices is None or op.attributes.get("batch_dims"):
        return None
    depth = indices.shape[-1]
    extents = [int(extent) for extent in graph.spec(op.inputs[0]).shape[:depth]]
    places = flat_places(indices, extents).flatten()
    if not torch.equal(places, torch.arange(math.prod(extents))):
        return None
    shape: list[Literal] = [int(extent) for extent in graph.spec(op.outputs[0]).shape]
    attributes: Mapping[str, Literal] = {"shape": shape, "allow_zero": True}
    return Operator(op.name, "braid.reshape", op.inputs[:1], op.outputs, attributes)


_REPEATING = frozenset(
    {
        *(f"aten.{name}" for name in ("add", "sub", "mul", "div", "maximum", "minimum")),
        *(f"aten.{name}" for name in ("eq", "lt", "le", "gt", "ge", "where")),
    }
)
"""Kinds that repeat their operands by themselves."""


def drop_expansions(graph: OpGraph, constants: Weights) -> OpGraph:
    """torch's exporter writes ``normalize`` so; each copy of 50,000 numbers took 30 us."""
    return rewrite_static(graph, constants, partial(_unexpanded, graph))


def _unexpanded(graph: OpGraph, op: Operator, upstream: Upstream) -> Operator | None:
    if op.kind not in _REPEATING:
        return None
    makers = [upstream.makers.get(name) for name in op.inputs]
    inputs = tuple(
        maker.inputs[0] if maker is not None and maker.kind == "braid.expand" else name
        for name, maker in zip(op.inputs, makers, strict=True)
    )
    if inputs == op.inputs:
        return None
    shapes = [tuple(map(int, graph.spec(name).shape)) for name in inputs]
    wanted = tuple(map(int, graph.spec(op.outputs[0]).shape))
    if tuple(torch.broadcast_shapes(*shapes)) != wanted:
        return None
    return dataclasses.replace(op, inputs=inputs)


def fold_view_chains(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """Only where nothing else reads the view in between, which is left for dead code removal."""
    rules = rule(_PERMUTED, _permuted_once), rule(_RESHAPED, _reshaped_once)
    return rewrite(graph, weights, *rules)


def _permuted_once(op: Operator, captures: Captures, upstream: Upstream) -> Operator | None:
    inner = upstream.makers[captures["inner"]]
    outer, first = op.attributes.get("dims"), inner.attributes.get("dims")
    if not isinstance(outer, list) or not isinstance(first, list) or len(outer) != len(first):
        return None
    dims = [first[place] for place in outer if isinstance(place, int)]
    return dataclasses.replace(op, inputs=inner.inputs, attributes={"dims": dims})


def _reshaped_once(op: Operator, captures: Captures, _: Upstream) -> Operator | None:
    """A reshape to extents that are all stated, whatever the shape before."""
    shape = op.attributes.get("shape")
    if op.host or not isinstance(shape, list):
        return None
    if 0 in shape and not op.attributes.get("allow_zero"):
        return None
    return dataclasses.replace(op, inputs=(captures["x"],))
