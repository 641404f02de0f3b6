"""Lowering of attention."""

from __future__ import annotations

import math

from braid.engine.lowering.builder import Builder
from braid.engine.lowering.unsupported_use import UnsupportedUse
from braid.engine.pt2.call_arguments import CallArguments
from braid.engine.pt2.lowering_table import lowers


@lowers("aten.scaled_dot_product_attention.default")
def attention(call: CallArguments, to: Builder) -> None:
    call.require("dropout_p", 0.0, 0)
    call.require("enable_gqa", False)
    head = call.shape_of("query")[-1]
    scale = call.number("scale", None)
    if scale is None:
        if not isinstance(head, int):
            raise UnsupportedUse("an open head size")
        scale = 1 / math.sqrt(head)
    operands = [call.tensor("query"), call.tensor("key"), call.tensor("value")]
    operands.append(call.maybe("attn_mask"))
    causal = call.flag("is_causal")
    kind = "aten.scaled_dot_product_attention"
    to.emit(kind, operands, call.output, causal=causal, scale=float(scale))
