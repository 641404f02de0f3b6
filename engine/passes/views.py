"""Folding of views: operators that only look at the same data under another shape."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import Tensor

from core.graph import Literal, Operator, OpGraph
from engine.passes.body import Body, Weights, everywhere
from engine.passes.ranks import ranks

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
