"""Lowering of attention, and of LSTM, GRU and RNN, each one operator.

Weights of recurrent layers are brought into torch's order; what torch's layers do not compute is
not lowered.
"""

from braid.engine.onnx.builder import Builder, UnsupportedUse
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


_DIRECTIONS = ("forward", "reverse", "bidirectional")
_DEFAULTS = {"lstm": ["Sigmoid", "Tanh", "Tanh"], "gru": ["Sigmoid", "Tanh"], "rnn": ["Tanh"]}
_TORCH_GATES = {"lstm": [0, 2, 3, 1], "gru": [1, 0, 2], "rnn": [0]}  # from iofc, zrh, i


def _enter(op_type: str, remarks: str) -> None:
    @lowers(op_type, 1, 22, remarks)
    def recurrent(node: OnnxNode, to: Builder) -> None:
        _layer(node, to, op_type.lower())


_enter(
    "LSTM", "as torch has it: no lengths, peepholes, clipping, coupled gates or other activations"
)
_enter(
    "GRU", "as torch has it: with linear_before_reset; no lengths, clipping or other activations"
)
_enter("RNN", "as torch has it: with Tanh or Relu; no lengths or clipping")


def _layer(node: OnnxNode, to: Builder, layer: str) -> None:
    direction = node.choice("direction", "forward", _DIRECTIONS)
    directions = 2 if direction == "bidirectional" else 1
    given = node.texts("activations") or _DEFAULTS[layer] * directions
    functions = [name[:1].upper() + name[1:] for name in given]
    is_relu = layer == "rnn" and functions == ["Relu"] * directions
    if not is_relu and functions != _DEFAULTS[layer] * directions:
        raise UnsupportedUse(f"activations={functions}")
    node.without_effect("activation_alpha", "activation_beta")  # of other activations
    if layer == "gru" and not node.flag("linear_before_reset"):
        raise UnsupportedUse("linear_before_reset=0")
    if layer == "lstm":
        node.require("input_forget", 0)
    states = [node.maybe(5), node.maybe(6) if layer == "lstm" else ""]
    to.emit(
        "braid.recurrent",
        [node.operand(0), "", *states, *_torch_weights(node, to, layer, directions)],
        (*node.outputs, "", "", "")[: 3 if layer == "lstm" else 2],
        layer=f"rnn_{'relu' if is_relu else 'tanh'}" if layer == "rnn" else layer,
        hidden=node.integer("hidden_size"),
        direction=direction,
        batch_first=node.flag("layout"),
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
