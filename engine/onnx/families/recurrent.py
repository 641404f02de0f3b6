"""LSTM, GRU and RNN, each one operator with its weights in torch's order."""

from __future__ import annotations

from engine.onnx.builder import Builder
from engine.onnx.node import Node, UnsupportedUse
from engine.onnx.registry import lowers

_DIRECTIONS = ("forward", "reverse", "bidirectional")


@lowers("LSTM", 1, 22, "default activations; no peepholes, no clipping")
def lstm(node: Node, to: Builder) -> None:
    """ONNX gates i, o, f, c become torch's i, f, c, o."""
    if node.maybe(7):
        raise UnsupportedUse("peephole weights")
    node.require("input_forget", 0)
    _layer(node, to, "lstm", ["Sigmoid", "Tanh", "Tanh"], [0, 2, 3, 1], states=2)


@lowers("GRU", 1, 22, "default activations; linear_before_reset only; no clipping")
def gru(node: Node, to: Builder) -> None:
    """ONNX gates z, r, h become torch's r, z, n."""
    if not node.flag("linear_before_reset"):
        raise UnsupportedUse("linear_before_reset=0")
    _layer(node, to, "gru", ["Sigmoid", "Tanh"], [1, 0, 2], states=1)


@lowers("RNN", 1, 22, "Tanh or Relu; no clipping")
def rnn(node: Node, to: Builder) -> None:
    """A plain recurrent layer."""
    functions = node.texts("activations") or ["Tanh"]
    layer = "rnn_relu" if functions[0] == "Relu" else "rnn_tanh"
    _layer(node, to, layer, [functions[0]], [0], states=1)


def _layer(
    node: Node, to: Builder, layer: str, defaults: list[str], order: list[int], states: int
) -> None:
    direction = node.choice("direction", "forward", _DIRECTIONS)
    directions = 2 if direction == "bidirectional" else 1
    functions = node.texts("activations")
    if functions is not None and functions != defaults * directions:
        raise UnsupportedUse(f"activations={functions}")
    if layer.startswith("rnn") and defaults[0] not in ("Tanh", "Relu"):
        raise UnsupportedUse(f"activations={functions}")
    node.without_effect("activation_alpha", "activation_beta")  # of no default activation
    if node.has("clip"):
        raise UnsupportedUse("clip")
    x, w, r, b = (node.operand(0), node.operand(1), node.operand(2), node.maybe(3))
    weights = []
    for d in range(directions):
        weights += [to.emit("braid.gates", [source], direction=d, order=order) for source in (w, r)]
        if b:
            weights += [
                to.emit("braid.gates", [b], direction=d, order=order, part=part, parts=2)
                for part in (0, 1)
            ]
    initial = [node.maybe(5), node.maybe(6) if states == 2 else ""]
    outputs = (*node.outputs, "", "", "")[: 1 + states]
    to.emit(
        "braid.recurrent",
        [x, node.maybe(4), *initial, *weights],
        outputs,
        layer=layer,
        hidden=node.integer("hidden_size"),
        direction=direction,
        batch_first=node.flag("layout"),
    )
