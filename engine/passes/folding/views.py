"""Folding of views: operators that give the same data another shape."""

from __future__ import annotations

import dataclasses

from braid.core.graph import Literal, Operator, OpGraph
from braid.engine.passes.body import Weights
from braid.engine.passes.matching import Captures, Op, Upstream, either, rewrite, rule, value

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


def fold_view_chains(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """Join chains of views: permute of permute, reshape of another reshape.

    Only where nothing else reads the view in between, which is left for dead code removal.
    """
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
