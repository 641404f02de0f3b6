"""LSTM, GRU and plain recurrent layers, each one unit over the whole sequence.

Weights stand in ONNX's layout, one block a direction: ``w`` [directions, gates * hidden, input],
``r`` [directions, gates * hidden, hidden]; ``braid.gates`` brings them into torch's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from braid.engine.ops.families.shape import check_shape
from braid.engine.ops.kinds import operator
from braid.engine.ops.value_ranges import Shape, ValueRange, Values


@dataclass(frozen=True, slots=True)
class RecurrentOptions:
    """Attributes of every recurrent kind."""

    layer: str  # lstm, gru, rnn_tanh or rnn_relu; rnn where the activations are listed
    hidden: int  # extent of the hidden state
    direction: str = "forward"  # forward, reverse or bidirectional
    batch_first: bool = False  # ONNX layout 1

    def runs_backward(self, direction: int) -> bool:
        """True if the weights of this index read the sequence from its end."""
        return self.direction == "reverse" or direction == 1

    def time_first(self, *tensors: Tensor | None) -> list[Tensor | None]:
        """Operands as [time, batch, ...] and [directions, batch, ...], however they were given."""
        if not self.batch_first:
            return list(tensors)
        return [None if tensor is None else tensor.transpose(0, 1) for tensor in tensors]

    def results(self, y: Tensor, *ends: Tensor) -> tuple[Tensor, ...]:
        """Takes y [time, directions, batch, hidden], final states [directions, batch, hidden]."""
        if not self.batch_first:
            return (y, *ends)
        return (y.permute(2, 0, 1, 3), *(end.transpose(0, 1) for end in ends))


def lengths_at(operand: int) -> Values:
    """Values of a layer whose ``operand`` holds the length of each sequence."""

    def lengths(
        shapes: Sequence[Shape | None], attributes: Mapping[str, Any]
    ) -> Iterable[ValueRange]:
        if len(shapes) > operand and shapes[operand] is not None:
            assert shapes[0] is not None
            time = shapes[0][1 if attributes.get("batch_first") else 0]
            yield ValueRange(operand, "length", 0, time)

    return lengths


@operator("braid.gates")
def gates(
    weight: Tensor, direction: int, order: Sequence[int], part: int = 0, parts: int = 1
) -> Tensor:
    """One direction's gate blocks in another order; ``part`` picks a half of an ONNX bias."""
    blocks = weight[direction].chunk(parts, 0)[part].chunk(len(order), 0)
    return torch.cat([blocks[i] for i in order], 0)


def _run_layer(
    layer: str,
    x: Tensor,
    states: tuple[Tensor, ...],
    weights: Sequence[Tensor],
    bidirectional: bool,
) -> tuple[Tensor, ...]:
    """Output [time, batch, directions * hidden] and the final states."""
    has_biases = len(weights) == (8 if bidirectional else 4)
    arguments = (list(weights), has_biases, 1, 0.0, False, bidirectional, False)
    if layer == "lstm":
        return torch.lstm(x, states, *arguments)
    run = {"gru": torch.gru, "rnn_tanh": torch.rnn_tanh, "rnn_relu": torch.rnn_relu}[layer]
    return run(x, states[0], *arguments)


_GATES = {"lstm": 4, "gru": 3}


@operator("braid.recurrent", values=lengths_at(1), options=RecurrentOptions)
def recurrent(
    x: Tensor,
    lengths: Tensor | None,
    hidden_0: Tensor | None,
    cell_0: Tensor | None,
    *weights: Tensor,
    options: RecurrentOptions,
) -> tuple[Tensor, ...]:
    """Run one recurrent layer with ONNX's shapes.

    Args:
        x: [time, batch, input], or [batch, time, input] with ``batch_first``.
        lengths: steps of each sequence, 0 to time, or None if all are full.
        hidden_0, cell_0: [directions, batch, hidden] ([batch, directions, hidden]), zeros if None.
        weights: for each direction w_input, w_hidden and the two biases, in torch's gate order.

    Returns y [time, directions, batch, hidden] ([batch, time, directions, hidden]), final states.
    """
    first = (hidden_0, cell_0) if options.layer == "lstm" else (hidden_0,)
    sequence, *given = options.time_first(x, *first)
    assert sequence is not None
    both = options.direction == "bidirectional"
    shape = (1 + both, sequence.shape[1], options.hidden)
    check_shape("lengths", lengths, shape[1:2])
    for state in given:  # torch reads beyond one that is too small
        check_shape("first state", state, shape)
    rows = _GATES.get(options.layer, 1) * options.hidden
    of_direction = (rows, sequence.shape[2]), (rows, options.hidden), (rows,), (rows,)
    for index, weight in enumerate(weights):
        check_shape("weight", weight, of_direction[index % (len(weights) // (1 + both))])
    if x.is_meta:  # torch would unroll the sequence to find the shapes
        empty = (x.new_empty(shape) for _ in given)
        return options.results(x.new_empty((sequence.shape[0], *shape)), *empty)
    states = tuple(x.new_zeros(shape) if s is None else s.contiguous() for s in given)
    if lengths is None and options.direction != "reverse":
        y, *ends = _run_layer(options.layer, sequence, states, weights, both)
        return options.results(torch.stack(y.chunk(1 + both, -1), 1), *ends)
    runs = []
    for d in range(1 + both):
        run = _Direction(options.layer, _part(weights, d, 1 + both))
        start = tuple(state[d : d + 1] for state in states)
        runs.append(run.over(sequence, lengths, start, options.runs_backward(d)))
    outputs, finals = zip(*runs, strict=True)
    ends = [torch.cat(parts, 0) for parts in zip(*finals, strict=True)]
    return options.results(torch.stack(outputs, 1), *ends)


def _part(weights: Sequence[Tensor], index: int, count: int) -> Sequence[Tensor]:
    size = len(weights) // count
    return weights[index * size : (index + 1) * size]


@dataclass(frozen=True, slots=True)
class _Direction:
    """One direction of a layer: its kind and weights."""

    layer: str
    weights: Sequence[Tensor]

    def over(
        self, x: Tensor, lengths: Tensor | None, start: tuple[Tensor, ...], backward: bool
    ) -> tuple[Tensor, list[Tensor]]:
        """Output [time, batch, hidden] and final states, [1, batch, hidden].

        With lengths, states freeze and outputs are zero behind each end.
        """
        if lengths is None:
            y, *last = _run_layer(self.layer, x.flip(0), start, self.weights, False)
            return y.flip(0), last
        time = x.shape[0]
        steps = torch.arange(time, device=x.device).unsqueeze(1)
        ends = lengths.to(x.device).long().unsqueeze(0)
        valid = (steps < ends).unsqueeze(-1)  # [time, batch, 1]
        source = torch.where(steps < ends, ends - 1 - steps, steps).unsqueeze(-1)
        if backward:
            x = x.gather(0, source.expand(x.shape))
        states, outputs = list(start), []
        for t in range(time):
            _, *new = _run_layer(self.layer, x[t : t + 1], tuple(states), self.weights, False)
            states = [torch.where(valid[t], n, old) for n, old in zip(new, states, strict=True)]
            outputs.append(torch.where(valid[t], states[0][0], torch.zeros_like(states[0][0])))
        y = torch.stack(outputs, 0)
        return (y.gather(0, source.expand(y.shape)) if backward else y), states
