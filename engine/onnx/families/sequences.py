"""Lowering of attention, and of LSTM, GRU and RNN, each one operator.

Where torch's fused layer means the same, its weights are brought into torch's order; elsewhere the
layer runs step by step with ONNX's own formulas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from braid.engine.lowering.builder import Builder, UnsupportedUse
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


_DIRECTIONS = ("forward", "reverse", "bidirectional")
_DEFAULTS = {"lstm": ["Sigmoid", "Tanh", "Tanh"], "gru": ["Sigmoid", "Tanh"], "rnn": ["Tanh"]}
_TORCH_GATES = {"lstm": [0, 2, 3, 1], "gru": [1, 0, 2], "rnn": [0]}  # from iofc, zrh, i
_WITH_ALPHA = ("Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu")
_WITH_BETA = ("Affine", "ScaledTanh", "HardSigmoid")
_PLAIN = ("Relu", "Tanh", "Sigmoid", "Softsign", "Softplus")


def _enter(op_type: str, remarks: str) -> None:
    @lowers(op_type, 1, 22, remarks)
    def recurrent(node: OnnxNode, to: Builder) -> None:
        _layer(node, to, op_type.lower())


_enter("LSTM", "fused where torch can; else step by step")
_enter("GRU", "fused with linear_before_reset; else step by step")
_enter("RNN", "fused with Tanh or Relu; else step by step")


def _layer(node: OnnxNode, to: Builder, layer: str) -> None:
    direction = node.choice("direction", "forward", _DIRECTIONS)
    directions = 2 if direction == "bidirectional" else 1
    functions = [
        name[:1].upper() + name[1:]
        for name in node.texts("activations") or _DEFAULTS[layer] * directions
    ]
    attributes: dict[str, Any] = {
        "hidden": node.integer("hidden_size"),
        "direction": direction,
        "batch_first": node.flag("layout"),
    }
    outputs = (*node.outputs, "", "", "")[: 3 if layer == "lstm" else 2]
    lstm = layer == "lstm"
    states = [node.maybe(4), node.maybe(5), node.maybe(6) if lstm else ""]
    peepholes = node.maybe(7) if lstm else ""
    special = _special(node, layer)
    alphas, betas = _parameters(node, functions)
    torch_layer = _torch_layer(layer, functions, directions)
    if torch_layer and not peepholes and _torch_computes(layer, special):
        operands = [node.operand(0), *states, *_torch_weights(node, to, layer, directions)]
        to.emit("braid.recurrent", operands, outputs, layer=torch_layer, **attributes)
        return
    to.emit(
        "braid.recurrent_steps",
        [*(node.operand(i) for i in range(3)), node.maybe(3), *states, peepholes],
        outputs,
        layer=layer,
        activations=functions,
        alphas=alphas,
        betas=betas,
        **attributes,
        **special,
    )


def _special(node: OnnxNode, layer: str) -> dict[str, Any]:
    """Attributes that ``braid.recurrent_steps`` alone has."""
    special: dict[str, Any] = {"clip": node.real("clip") if node.has("clip") else None}
    if layer == "lstm":
        special["input_forget"] = node.flag("input_forget")
    if layer == "gru":
        special["linear_before_reset"] = node.flag("linear_before_reset")
    return special


def _torch_computes(layer: str, special: Mapping[str, Any]) -> bool:
    if special["clip"] is not None or special.get("input_forget"):
        return False
    return layer != "gru" or bool(special["linear_before_reset"])


def _torch_layer(layer: str, functions: list[str], directions: int) -> str:
    """The torch layer with these activations, ``""`` if there is none."""
    if layer == "rnn" and functions == ["Relu"] * directions:
        return "rnn_relu"
    if functions != _DEFAULTS[layer] * directions:
        return ""
    return "rnn_tanh" if layer == "rnn" else layer


def _parameters(
    node: OnnxNode, functions: list[str]
) -> tuple[list[float | None], list[float | None]]:
    """Alpha and beta of each activation; the file lists only those that take one, in order."""
    unknown = sorted(set(functions) - set(_PLAIN) - set(_WITH_ALPHA))
    if unknown:
        raise UnsupportedUse(f"activations={unknown}")
    alphas = iter(node.reals("activation_alpha") or [])
    betas = iter(node.reals("activation_beta") or [])
    return (
        [next(alphas, None) if name in _WITH_ALPHA else None for name in functions],
        [next(betas, None) if name in _WITH_BETA else None for name in functions],
    )


def _torch_weights(node: OnnxNode, to: Builder, layer: str, directions: int) -> list[str]:
    """For each direction w, r and the two biases, gates in torch's order."""
    w, r, b = node.operand(1), node.operand(2), node.maybe(3)
    order, weights = _TORCH_GATES[layer], []
    for d in range(directions):
        weights += [to.emit("braid.gates", [part], direction=d, order=order) for part in (w, r)]
        if b:
            weights += [
                to.emit("braid.gates", [b], direction=d, order=order, part=part, parts=2)
                for part in (0, 1)
            ]
    return weights
