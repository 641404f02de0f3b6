"""Lowering of attention."""

from __future__ import annotations

from braid.engine.lowering.builder import Builder
from braid.engine.lowering.unsupported_use import UnsupportedUse
from braid.engine.onnx.lowering_table import lowers
from braid.engine.onnx.node import OnnxNode
from braid.engine.onnx.tensors import dtype_name


@lowers("Attention", 23, 25, "caches, masks, windows, caps and grouped heads")
def attention(node: OnnxNode, to: Builder) -> None:
    """Scaled dot product attention as one operator, caches included."""
    mode = node.integer("qk_matmul_output_mode", 0)
    if mode not in range(4):
        raise UnsupportedUse(f"qk_matmul_output_mode={mode}")
    precision = node.integer("softmax_precision", 0)
    operands = [node.operand(0), node.operand(1), node.operand(2)]
    operands += [node.maybe(i) for i in range(3, 7)]
    outputs = (*node.outputs, "", "", "")[: 4 if node.wants(3) else 3]
    to.emit(
        "braid.attention",
        operands,
        outputs,
        q_heads=node.integer("q_num_heads", 0) or None,
        kv_heads=node.integer("kv_num_heads", 0) or None,
        scale=node.real("scale") if node.has("scale") else None,
        causal=node.flag("is_causal"),
        softcap=node.real("softcap", 0.0),
        left=node.integer("left_window_size", -1),
        right=node.integer("right_window_size", -1),
        precision=dtype_name(precision) if precision else None,
        scores=mode if node.wants(3) else None,
    )


@lowers("RotaryEmbedding", 23, 23)
def rotary_embedding(node: OnnxNode, to: Builder) -> None:
    operands = [node.operand(0), node.operand(1), node.operand(2)]
    operands += [positions] if (positions := node.maybe(3)) else []
    to.emit(
        "braid.rotary_embedding",
        operands,
        node.output,
        heads=node.integer("num_heads", 0),
        extent=node.integer("rotary_embedding_dim", 0),
        interleaved=node.flag("interleaved"),
    )
