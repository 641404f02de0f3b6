"""Lowering of attention, and of LSTM, GRU and RNN, one operator a layer over all steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from braid.engine.lowering.builder import Builder, UnsupportedUse
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


_LAYERS = {
    "aten.lstm.input": "lstm",
    "aten.gru.input": "gru",
    "aten.rnn_tanh.input": "rnn_tanh",
    "aten.rnn_relu.input": "rnn_relu",
}


@dataclass(frozen=True, slots=True)
class _Stack:
    """Layers of one kind on top of each other, each in one or both directions."""

    kind: str  # lstm, gru, rnn_tanh or rnn_relu
    layers: int
    directions: int
    hidden: int
    weights: Sequence[str]  # of each layer and direction in turn
    states: Sequence[str]  # first ones, [layers * directions, batch, hidden]

    def layer(self, to: Builder, index: int, x: str, label: str) -> list[str]:
        """Write one layer over x [time, batch, input]; values of its output and final states."""
        count = len(self.weights) // self.layers
        weights = self.weights[index * count : (index + 1) * count]
        first = index * self.directions
        starts = [
            _layer_state(to, state, first, self.directions, self.layers) for state in self.states
        ]
        names = [f"{label}/{what}{index}" for what in ("y", "h", "c")][: 1 + len(starts)]
        to.emit(
            "braid.recurrent",
            [x, "", *starts, *[""] * (2 - len(starts)), *weights],
            names,
            layer=self.kind,
            hidden=self.hidden,
            direction="bidirectional" if self.directions == 2 else "forward",
            batch_first=False,
        )
        return [to.resolve(name) or "" for name in names]


@lowers(*_LAYERS)
def recurrent(call: CallArguments, to: Builder) -> None:
    """Recurrent layers on top of each other, each in one or both directions."""
    stack = _stack(call)
    x, batch_first = call.tensor("input"), call.flag("batch_first")
    if batch_first:
        x = to.emit("aten.permute", [x], dims=[1, 0, 2])
    finals: list[list[str]] = [[] for _ in stack.states]
    for index in range(stack.layers):
        y, *ends = stack.layer(to, index, x, call.label)
        for kept, end in zip(finals, ends, strict=True):
            kept.append(end)
        last = index == stack.layers - 1 and not batch_first
        x = _joined(to, y, stack.directions, call.output if last else ("",))
    if batch_first:
        to.emit("aten.permute", [x], call.output, dims=[1, 0, 2])
    for name, parts in zip(call.outputs[1:], finals, strict=False):
        if name and len(parts) == 1:
            to.alias(name, parts[0])
        elif name:
            to.emit("aten.cat", parts, [name], dim=0)


def _stack(call: CallArguments) -> _Stack:
    call.without_effect("dropout")
    call.require("train", False)
    kind, layers = _LAYERS[call.target], call.integer("num_layers")
    directions = 2 if call.flag("bidirectional") else 1
    weights = call.tensors("params")
    if len(weights) != layers * directions * (4 if call.flag("has_biases") else 2):
        raise UnsupportedUse("projections")
    if call.rank("input") != 3:
        raise UnsupportedUse("an input without a batch axis")
    states = call.tensors("hx") if kind == "lstm" else [call.tensor("hx")]
    return _Stack(kind, layers, directions, call.hidden_size("params"), weights, states)


def _layer_state(to: Builder, state: str, first: int, count: int, layers: int) -> str:
    """The part of a first state that belongs to one layer."""
    if layers == 1:
        return state
    end = first + count
    return to.emit("braid.slice", [state], starts=[first], ends=[end], axes=[0], steps=[1])


def _joined(to: Builder, y: str, directions: int, output: tuple[str]) -> str:
    """Reshape [time, directions, batch, hidden] to [time, batch, directions * hidden]."""
    if directions == 1:
        return to.emit("braid.squeeze", [y], output, axes=[1])
    moved = to.emit("aten.permute", [y], dims=[0, 2, 1, 3])
    return to.emit("braid.reshape", [moved], output, shape=[0, 0, -1], allow_zero=False)
