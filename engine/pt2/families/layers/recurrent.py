"""LSTM, GRU and RNN: one operator a layer, the whole sequence in it."""

from __future__ import annotations

from braid.engine.lowering.builder import Builder
from braid.engine.lowering.unsupported_use import UnsupportedUse
from braid.engine.pt2.call_arguments import CallArguments
from braid.engine.pt2.lowering_table import lowers

_LAYERS = {
    "aten.lstm.input": "lstm",
    "aten.gru.input": "gru",
    "aten.rnn_tanh.input": "rnn_tanh",
    "aten.rnn_relu.input": "rnn_relu",
}


@lowers(*_LAYERS)
def recurrent(call: CallArguments, to: Builder) -> None:
    """Stacked layers, each in one or both directions."""
    layer = _LAYERS[call.target]
    call.without_effect("dropout")
    call.require("train", False)
    both, layers = call.flag("bidirectional"), call.integer("num_layers")
    directions = 2 if both else 1
    weights = call.tensors("params")
    per_direction = 4 if call.flag("has_biases") else 2
    if len(weights) != layers * directions * per_direction:
        raise UnsupportedUse("projections")
    if call.rank("input") != 3:
        raise UnsupportedUse("an input without a batch axis")
    hidden = call.hidden_size("params")
    states = call.tensors("hx") if layer == "lstm" else [call.tensor("hx")]
    x, batch_first = call.tensor("input"), call.flag("batch_first")
    if batch_first:
        x = to.emit("aten.permute", [x], dims=[1, 0, 2])
    finals: list[list[str]] = [[] for _ in states]
    for index in range(layers):
        span = slice(index * directions * per_direction, (index + 1) * directions * per_direction)
        starts = [_layer_state(to, s, index * directions, directions, layers) for s in states]
        names = [f"{call.label}/{what}{index}" for what in ("y", "h", "c")][: 1 + len(states)]
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
        x = _joined(to, y, directions, call.output if last else ("",))
    if batch_first:
        to.emit("aten.permute", [x], call.output, dims=[1, 0, 2])
    for name, parts in zip(call.outputs[1:], finals, strict=False):
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
