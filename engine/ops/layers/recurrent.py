"""LSTM, GRU and plain recurrent layers, each one unit over the whole sequence.

Weights stand in ONNX's layout, one block a direction: ``w`` [directions, gates * hidden, input],
``r`` [directions, gates * hidden, hidden]; ``braid.gates`` brings them into torch's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from braid.engine.ops.kinds import operator


@operator("braid.gates")
def gates(
    weight: Tensor, direction: int, order: Sequence[int], part: int = 0, parts: int = 1
) -> Tensor:
    """One direction's gate blocks, in another order.

    ``part`` of ``parts`` picks the input or the recurrent half of an ONNX bias.
    """
    blocks = weight[direction].chunk(parts, 0)[part].chunk(len(order), 0)
    return torch.cat([blocks[i] for i in order], 0)


def _run_layer(
    layer: str,
    x: Tensor,
    states: tuple[Tensor, ...],
    weights: Sequence[Tensor],
    bidirectional: bool,
    batch_first: bool = False,
) -> tuple[Tensor, ...]:
    """Output [time, batch, directions * hidden] and the final states."""
    has_biases = len(weights) == (8 if bidirectional else 4)
    arguments = (list(weights), has_biases, 1, 0.0, False, bidirectional, batch_first)
    if layer == "lstm":
        return torch.lstm(x, states, *arguments)
    run = {"gru": torch.gru, "rnn_tanh": torch.rnn_tanh, "rnn_relu": torch.rnn_relu}[layer]
    return run(x, states[0], *arguments)


@operator("braid.recurrent")
def recurrent(
    x: Tensor,
    lengths: Tensor | None,
    hidden_0: Tensor | None,
    cell_0: Tensor | None,
    *weights: Tensor,
    layer: str,
    hidden: int,
    direction: str = "forward",
    batch_first: bool = False,
) -> tuple[Tensor, ...]:
    """One recurrent layer with ONNX's shapes.

    Args:
        x: [time, batch, input], or [batch, time, input] with ``batch_first``.
        lengths: steps of each sequence, or None if all are full.
        hidden_0: [directions, batch, hidden] ([batch, directions, hidden]), zeros if None.
        cell_0: the same for the cell of an LSTM.
        weights: for each direction w_input, w_hidden and the two biases, in torch's gate order.
        layer: lstm, gru, rnn_tanh or rnn_relu.
        hidden: extent of the hidden state.
        direction: forward, reverse or bidirectional.
        batch_first: ONNX layout 1.

    Returns:
        y [time, directions, batch, hidden] ([batch, time, directions, hidden]), final hidden
        and, for an LSTM, final cell.
    """
    both = direction == "bidirectional"
    directions = 2 if both else 1
    if batch_first:
        x = x.transpose(0, 1)
        hidden_0 = hidden_0.transpose(0, 1) if hidden_0 is not None else None
        cell_0 = cell_0.transpose(0, 1) if cell_0 is not None else None
    batch = x.shape[1]
    if x.is_meta:  # torch would unroll the sequence to find the shapes
        shapes = [(x.shape[0], directions, batch, hidden)] + [(directions, batch, hidden)] * (
            2 if layer == "lstm" else 1
        )
        swap = [(2, 0, 1, 3), (1, 0, 2), (1, 0, 2)]
        empty = [x.new_empty(shape) for shape in shapes]
        if batch_first:
            empty = [t.permute(dims) for t, dims in zip(empty, swap, strict=False)]
        return tuple(empty)
    zeros = torch.zeros((directions, batch, hidden), dtype=x.dtype, device=x.device)
    states = [zeros if state is None else state.contiguous() for state in (hidden_0, cell_0)]
    states = states if layer == "lstm" else states[:1]
    per_direction = len(weights) // directions
    outputs, finals = [], []
    if lengths is None and direction == "forward":
        y, *last = _run_layer(layer, x, tuple(states), weights, False)
        outputs, finals = [y], [last]
    elif lengths is None and both:
        y, *last = _run_layer(layer, x, tuple(states), weights, True)
        outputs, finals = list(y.chunk(2, -1)), [last]
    else:
        for d in range(directions):
            backward = direction == "reverse" or d == 1
            mine = weights[d * per_direction : (d + 1) * per_direction]
            start = tuple(state[d : d + 1] for state in states)
            y, last = _run_direction(layer, x, lengths, start, mine, backward)
            outputs.append(y)
            finals.append(last)
    y = torch.stack(outputs, 1)  # [time, directions, batch, hidden]
    ends = [torch.cat(parts, 0) for parts in zip(*finals, strict=True)]
    if batch_first:
        return (y.permute(2, 0, 1, 3), *(end.transpose(0, 1) for end in ends))
    return (y, *ends)


def _run_direction(
    layer: str,
    x: Tensor,
    lengths: Tensor | None,
    start: tuple[Tensor, ...],
    weights: Sequence[Tensor],
    backward: bool,
) -> tuple[Tensor, list[Tensor]]:
    """One direction; with lengths, states freeze and outputs are zero behind each end."""
    if lengths is None:
        y, *last = _run_layer(layer, x.flip(0), start, weights, False)
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
        _, *after = _run_layer(layer, x[t : t + 1], tuple(states), weights, False)
        states = [torch.where(valid[t], new, old) for new, old in zip(after, states, strict=True)]
        outputs.append(torch.where(valid[t], states[0][0], torch.zeros_like(states[0][0])))
    y = torch.stack(outputs, 0)
    return (y.gather(0, source.expand(y.shape)) if backward else y), states
