"""Attention, kept whole."""

from __future__ import annotations

import math

from braid.engine.lowering.builder import Builder
from braid.engine.onnx.node import UnsupportedUse
from braid.engine.pt2.call_arguments import Use
from braid.engine.pt2.lowering_table import lowers


@lowers("aten.scaled_dot_product_attention.default")
def attention(use: Use, to: Builder) -> None:
    """Scaled dot product attention."""
    use.require("dropout_p", 0.0, 0)
    use.require("enable_gqa", False)
    head = use.shape_of("query")[-1]
    scale = use.number("scale", None)
    if scale is None:
        if not isinstance(head, int):
            raise UnsupportedUse("an open head size")
        scale = 1 / math.sqrt(head)
    operands = [use.tensor("query"), use.tensor("key"), use.tensor("value")]
    operands.append(use.maybe("attn_mask"))
    causal = use.flag("is_causal")
    kind = "aten.scaled_dot_product_attention"
    to.emit(kind, operands, use.output, causal=causal, scale=float(scale))
