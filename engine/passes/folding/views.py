"""Folding of views: operators that give the same data another shape."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import Tensor

from braid.core.graph import Literal, Operator, OpGraph
from braid.engine.passes.body import Body, Weights, everywhere
from braid.engine.passes.ranks import ranks

_POOL = "braid.global_avg_pool"


def fold_pooled_views(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """Write a global average followed by a flatten as one ``mean`` that drops the axes."""
    return everywhere(_fold_pooled_views, graph, weights)


def _fold_pooled_views(body: Body, weights: dict[str, Tensor]) -> Body:
    reads, rank_of, made = body.reads(), ranks(body, weights), body.makers()
    kept: dict[str, Operator] = {}  # by name, in order
    for op in body.operators:
        pool = made.get(op.inputs[0]) if op.inputs and _drops_spatial_axes(op) else None
        rank = rank_of.get(pool.inputs[0]) if pool is not None else None
        if pool is not None and rank is not None and _alone(pool, reads[op.inputs[0]]):
            dims: list[Literal] = list(range(2, rank))
            mean: Mapping[str, Literal] = {"dims": dims, "keepdim": False}
            op = Operator(pool.name, "aten.mean", pool.inputs, op.outputs, mean)
        kept[op.name] = op  # a folded one keeps the pool's name and place
    return dataclasses.replace(body, operators=tuple(kept.values()))


def _alone(pool: Operator, readers: int) -> bool:
    return pool.kind == _POOL and readers == 1 and not pool.attributes


def _drops_spatial_axes(op: Operator) -> bool:
    """True if the operator makes [n, c] of [n, c, 1, ...]."""
    if op.host or op.attributes.get("epilogue"):
        return False
    if op.kind == "braid.flatten":
        return op.attributes.get("axis", 1) == 1
    shape = op.attributes.get("shape")
    return op.kind == "braid.reshape" and shape == [0, -1]


_RESHAPES = frozenset({"braid.reshape", "braid.flatten", "braid.squeeze", "braid.unsqueeze"})


def fold_view_chains(graph: OpGraph, weights: Weights) -> tuple[OpGraph, Weights]:
    """Join chains of views: permute of permute, reshape of another reshape.

    Only where nothing else reads the view in between, which is left for dead code removal.
    """
    return everywhere(_fold_view_chains, graph, weights)


def _fold_view_chains(body: Body, weights: dict[str, Tensor]) -> Body:
    reads, made = body.reads(), body.makers()
    done = []
    for op in body.operators:
        inner = made.get(op.inputs[0]) if op.inputs and op.inputs[0] else None
        if inner is not None and reads[op.inputs[0]] == 1 and not op.host and not inner.branches:
            folded = _permuted_once(op, inner) or _reshaped_once(op, inner)
            if folded is not None:
                op = folded
                made[op.outputs[0]] = op
        done.append(op)
    return dataclasses.replace(body, operators=tuple(done))


def _permuted_once(op: Operator, inner: Operator) -> Operator | None:
    if op.kind != "aten.permute" or inner.kind != "aten.permute" or _fused(op, inner):
        return None
    outer, first = op.attributes.get("dims"), inner.attributes.get("dims")
    if not isinstance(outer, list) or not isinstance(first, list) or len(outer) != len(first):
        return None
    dims = [first[place] for place in outer if isinstance(place, int)]
    return dataclasses.replace(op, inputs=inner.inputs, attributes={"dims": dims})


def _reshaped_once(op: Operator, inner: Operator) -> Operator | None:
    """A reshape to extents that are all stated, whatever the shape before."""
    shape = op.attributes.get("shape")
    if op.kind != "braid.reshape" or inner.kind not in _RESHAPES or _fused(op, inner):
        return None
    if not isinstance(shape, list) or (0 in shape and not op.attributes.get("allow_zero")):
        return None
    return dataclasses.replace(op, inputs=inner.inputs[:1])


def _fused(*operators: Operator) -> bool:
    return any("epilogue" in op.attributes for op in operators)
