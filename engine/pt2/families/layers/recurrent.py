"""LSTM, GRU and RNN: one operator a layer, the whole sequence in it."""

from __future__ import annotations

from braid.engine.lowering.builder import Builder
from braid.engine.onnx.node import UnsupportedUse
from braid.engine.pt2.call_arguments import Use
from braid.engine.pt2.lowering_table import lowers

_LAYERS = {
    "aten.lstm.input": "lstm",
    "aten.gru.input": "gru",
    "aten.rnn_tanh.input": "rnn_tanh",
    "aten.rnn_relu.input": "rnn_relu",
}


@lowers(*_LAYERS)
def recurrent(use: Use, to: Builder) -> None:
    """Stacked layers, each in one or both directions."""
    layer = _LAYERS[use.target]
    use.without_effect("dropout")
    use.require("train", False)
    both, layers = use.flag("bidirectional"), use.integer("num_layers")
    directions = 2 if both else 1
    weights = use.tensors("params")
    per_direction = 4 if use.flag("has_biases") else 2
    if len(weights) != layers * directions * per_direction:
        raise UnsupportedUse("projections")
    if use.rank("input") != 3:
        raise UnsupportedUse("an input without a batch axis")
    hidden = use.hidden_size("params")
    states = use.tensors("hx") if layer == "lstm" else [use.tensor("hx")]
    x, batch_first = use.tensor("input"), use.flag("batch_first")
    if batch_first:
        x = to.emit("aten.permute", [x], dims=[1, 0, 2])
    finals: list[list[str]] = [[] for _ in states]
    for index in range(layers):
        span = slice(index * directions * per_direction, (index + 1) * directions * per_direction)
        starts = [_layer_state(to, s, index * directions, directions, layers) for s in states]
        names = [f"{use.label}/{what}{index}" for what in ("y", "h", "c")][: 1 + len(states)]
        to.emit(
            "braid.recurrent",
            [x, "", *starts, *[""] * (2 - len(starts)), *weights[span]],
            names,
            layer=layer,
            hidden=hidden,
            direction="bidirectional" if both else "forward",
            batch_first=False,
        )
        y, *ends = [to.resolve(name) or "" for name in names]
        for kept, end in zip(finals, ends, strict=True):
            kept.append(end)
        last = index == layers - 1 and not batch_first
        x = _joined(to, y, directions, use.output if last else ("",))
    if batch_first:
        to.emit("aten.permute", [x], use.output, dims=[1, 0, 2])
    for name, parts in zip(use.outputs[1:], finals, strict=False):
        if name and len(parts) == 1:
            to.alias(name, parts[0])
        elif name:
            to.emit("aten.cat", parts, [name], dim=0)


def _layer_state(to: Builder, state: str, first: int, count: int, layers: int) -> str:
    if layers == 1:
        return state
    end = first + count
    return to.emit("braid.slice", [state], starts=[first], ends=[end], axes=[0], steps=[1])


def _joined(to: Builder, y: str, directions: int, output: tuple[str]) -> str:
    """[time, directions, batch, hidden] as [time, batch, directions * hidden]."""
    if directions == 1:
        return to.emit("braid.squeeze", [y], output, axes=[1])
    moved = to.emit("aten.permute", [y], dims=[0, 2, 1, 3])
    return to.emit("braid.reshape", [moved], output, shape=[0, 0, -1], allow_zero=False)
