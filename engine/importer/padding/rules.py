"""Rules for operators: when their results at the positions of the request need no others.

A rule gets facts of the operands and gives facts of the results, or raises NotShown. What has no
rule here is not shown: convolutions and pooling over the axis, recurrent layers, statistics.
"""

from __future__ import annotations

from collections.abc import Mapping

from braid.engine.importer.padding import attention, moves, products
from braid.engine.importer.padding.site import Rule

TAKES_BLOCKS = frozenset(
    {
        *("aten.linear", "braid.linear_add", "aten.layer_norm", "braid.rms_norm"),
        *("braid.reshape", "braid.flatten", "braid.squeeze", "braid.unsqueeze"),
    }
)
"""Kinds, besides elementwise ones, whose rules know of an axis that is joined with outer ones."""

RULES: Mapping[str, Rule] = {
    "aten.linear": products.linear,
    "braid.linear_add": products.linear,
    "aten.matmul": products.matmul,
    "aten.convolution": products.convolution,
    "aten.layer_norm": products.over_last,
    "braid.rms_norm": products.over_last,
    "aten.batch_norm": products.batch_norm,
    "aten.softmax": products.softmax,
    "aten.log_softmax": products.softmax,
    "aten.sum": products.reduction,
    "aten.mean": products.reduction,
    "aten.amax": products.reduction,
    "aten.amin": products.reduction,
    "aten.logsumexp": products.reduction,
    "braid.l1_norm": products.reduction,
    "braid.l2_norm": products.reduction,
    "braid.sum_square": products.reduction,
    "braid.prod": products.reduction,
    "braid.argmax": products.arg_extreme,
    "braid.argmin": products.arg_extreme,
    "braid.cumsum": products.running,
    "aten.permute": moves.permute,
    "braid.reshape": moves.reshape,
    "braid.flatten": moves.reshape,
    "braid.squeeze": moves.reshape,
    "braid.unsqueeze": moves.reshape,
    "braid.expand": moves.expand,
    "braid.expand_as": moves.expand,
    "braid.slice": moves.slice_,
    "aten.cat": moves.cat,
    "braid.split": moves.split,
    "braid.tile": moves.tile,
    "braid.pad": moves.pad,
    "braid.trilu": moves.trilu,
    "braid.range": moves.constant,
    "braid.constant_of_shape": moves.constant,
    "braid.full_like": moves.full_like,
    "braid.gather": moves.gather,
    "aten.embedding": moves.embedding,
    "aten.select": moves.select,
    "braid.gather_elements": moves.gather_elements,
    "braid.gather_nd": moves.gather_nd,
    "braid.attention": attention.attention,
    "aten.scaled_dot_product_attention": attention.attention,
    "braid.rotary_embedding": attention.rotary,
}
