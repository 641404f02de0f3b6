"""LSTM, GRU and plain recurrent layers, each one unit over the whole sequence.

Weights stand in ONNX's layout, one block a direction: ``w`` [directions, gates * hidden, input],
``r`` [directions, gates * hidden, hidden]; ``braid.gates`` brings them into torch's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from braid.engine.ops.families.shape import check_shape
from braid.engine.ops.kinds import operator


@dataclass(frozen=True, slots=True)
class RecurrentOptions:
    """Attributes of ``braid.recurrent``."""

    layer: str  # lstm, gru, rnn_tanh or rnn_relu
    hidden: int  # extent of the hidden state
    direction: str = "forward"  # forward, reverse or bidirectional
    batch_first: bool = False  # ONNX layout 1

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


@operator("braid.recurrent", options=RecurrentOptions)
def recurrent(
    x: Tensor,
    _: None,  # place of lengths, which nothing gives
    hidden_0: Tensor | None,
    cell_0: Tensor | None,
    *weights: Tensor,
    options: RecurrentOptions,
) -> tuple[Tensor, ...]:
    """Run one recurrent layer with ONNX's shapes.

    Args:
        x: [time, batch, input], or [batch, time, input] with ``batch_first``.
        hidden_0, cell_0: [directions, batch, hidden] ([batch, directions, hidden]), zeros if None.
        weights: for each direction w_input, w_hidden and the two biases, in torch's gate order.

    Returns y [time, directions, batch, hidden] ([batch, time, directions, hidden]), final states.
    """
    first = (hidden_0, cell_0) if options.layer == "lstm" else (hidden_0,)
    sequence, *given = options.time_first(x, *first)
    assert sequence is not None
    both = options.direction == "bidirectional"
    shape = (1 + both, sequence.shape[1], options.hidden)
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
    if options.direction == "reverse":
        y, *ends = _run_layer(options.layer, sequence.flip(0), states, weights, False)
        y = y.flip(0)
    else:
        y, *ends = _run_layer(options.layer, sequence, states, weights, both)
    return options.results(torch.stack(y.chunk(1 + both, -1), 1), *ends)
