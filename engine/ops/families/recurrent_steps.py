"""Recurrent layers step by step: what torch's fused layers do not cover.

Peephole weights, activations other than the usual ones, clipping, coupled gates, and the GRU that
resets before its linear map. Formulas and weight layout are ONNX's (LSTM, GRU and RNN).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from braid.engine.ops.families.recurrent import RecurrentOptions, lengths_at
from braid.engine.ops.families.shape import check_shape
from braid.engine.ops.kinds import operator

Activation = Callable[[Tensor], Tensor]


def activation(name: str, alpha: float | None, beta: float | None) -> Activation:
    """An activation by ONNX's name for it, else ``ValueError``."""

    def given(value: float | None, default: float) -> float:
        return default if value is None else value

    match name:
        case "Sigmoid":
            return torch.sigmoid
        case "Tanh":
            return torch.tanh
        case "Relu":
            return torch.relu
        case "Affine":
            return lambda x: x * given(alpha, 1.0) + given(beta, 0.0)
        case "LeakyRelu":
            return lambda x: F.leaky_relu(x, given(alpha, 0.01))
        case "ThresholdedRelu":
            return lambda x: torch.where(x > given(alpha, 1.0), x, torch.zeros_like(x))
        case "ScaledTanh":
            return lambda x: given(alpha, 1.0) * torch.tanh(given(beta, 1.0) * x)
        case "HardSigmoid":
            return lambda x: torch.clamp(given(alpha, 0.2) * x + given(beta, 0.5), 0, 1)
        case "Elu":
            return lambda x: F.elu(x, given(alpha, 1.0))
        case "Softsign":
            return F.softsign
        case "Softplus":
            return F.softplus
    raise ValueError(f"unknown activation {name!r}")


@dataclass(frozen=True, slots=True)
class StepOptions(RecurrentOptions):
    """Options of ``recurrent_steps``; lists have an entry for each function of each direction."""

    activations: Sequence[str] = ()
    alphas: Sequence[float | None] = ()
    betas: Sequence[float | None] = ()
    clip: float | None = None  # limit of what goes into an activation, at both sides
    linear_before_reset: bool = False  # of a GRU
    input_forget: bool = False  # an LSTM's forget gate is 1 - its input gate

    def functions(self, direction: int, directions: int) -> Sequence[Activation]:
        count = len(self.activations) // directions
        listed = list(zip(self.activations, self.alphas, self.betas, strict=True))
        return [activation(*entry) for entry in listed[direction * count : (direction + 1) * count]]


@dataclass(frozen=True, slots=True)
class _Cell:
    """One direction of a layer: its weights, activations and options."""

    r: Tensor  # [gates * hidden, hidden]
    r_bias: Tensor
    peephole: Tensor | None  # [3 * hidden]
    functions: Sequence[Activation]
    options: StepOptions

    def clipped(self, x: Tensor) -> Tensor:
        clip = self.options.clip
        return x if clip is None else torch.clamp(x, -clip, clip)


def _rnn(cell: _Cell, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    return cell.functions[0](cell.clipped(x + F.linear(h, cell.r, cell.r_bias))), c


def _gru(cell: _Cell, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    f, g = cell.functions
    xz, xr, xh = x.chunk(3, -1)
    size = h.shape[-1]
    zr = F.linear(h, cell.r[: 2 * size], cell.r_bias[: 2 * size])
    update = f(cell.clipped(xz + zr[..., :size]))
    reset = f(cell.clipped(xr + zr[..., size:]))
    r, bias = cell.r[2 * size :], cell.r_bias[2 * size :]
    if cell.options.linear_before_reset:
        inner = reset * F.linear(h, r, bias)
    else:
        inner = F.linear(reset * h, r, bias)
    return (1 - update) * g(cell.clipped(xh + inner)) + update * h, c


def _lstm(cell: _Cell, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    f, g, last = cell.functions
    i, o, forget, new = (x + F.linear(h, cell.r, cell.r_bias)).chunk(4, -1)
    if cell.peephole is not None:
        peep_i, peep_o, peep_f = cell.peephole.chunk(3, -1)
        i, forget = i + peep_i * c, forget + peep_f * c
    i = f(cell.clipped(i))
    forget = 1 - i if cell.options.input_forget else f(cell.clipped(forget))
    c = forget * c + i * g(cell.clipped(new))
    if cell.peephole is not None:
        o = o + peep_o * c
    return f(cell.clipped(o)) * last(c), c


_STEPS = {"rnn": _rnn, "gru": _gru, "lstm": _lstm}


@operator("braid.recurrent_steps", values=lengths_at(4), options=StepOptions)
def recurrent_steps(
    x: Tensor, w: Tensor, r: Tensor, *others: Tensor | None, options: StepOptions
) -> tuple[Tensor, ...]:
    """One recurrent layer; operands, results and shapes as ONNX has them.

    x [time, batch, input], or [batch, time, input] with ``batch_first``; w [directions, gates *
    hidden, input]; r [directions, gates * hidden, hidden]; ``others``, None where absent: biases,
    lengths, first hidden state, first cell state, peephole weights.
    """
    b, lengths, hidden_0, cell_0, peepholes = (*others, *[None] * 5)[:5]
    sequence, *given = options.time_first(x, hidden_0, cell_0)
    assert sequence is not None
    directions, rows = w.shape[:2]
    zeros = x.new_zeros((directions, sequence.shape[1], options.hidden))
    check_shape("lengths", lengths, sequence.shape[1:2])
    for state in given:
        check_shape("first state", state, zeros.shape)
    bias = x.new_zeros((directions, 2 * rows)) if b is None else b
    results = []
    for d in range(directions):
        cell = _Cell(
            r[d],
            bias[d, rows:],
            None if peepholes is None else peepholes[d],
            options.functions(d, directions),
            options,
        )
        h, c = ((zeros if state is None else state)[d] for state in given)
        mapped = F.linear(sequence, w[d], bias[d, :rows])
        results.append(_scan(cell, mapped, (h, c), lengths, options.runs_backward(d)))
    y = torch.stack([result[0] for result in results], 1)
    ends = [torch.stack([result[i] for result in results], 0) for i in (1, 2)]
    return options.results(y, *ends[: 2 if options.layer == "lstm" else 1])


def _scan(
    cell: _Cell,
    mapped: Tensor,
    start: tuple[Tensor, Tensor],
    lengths: Tensor | None,
    backward: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """All steps of one direction: outputs and final states."""
    h, c = start
    time = mapped.shape[0]
    if mapped.is_meta:
        return mapped.new_empty((time, *h.shape)), torch.empty_like(h), torch.empty_like(c)
    outputs: list[Tensor] = [h] * time
    for t in reversed(range(time)) if backward else range(time):
        new_h, new_c = _STEPS[cell.options.layer](cell, mapped[t], h, c)
        if lengths is None:
            h, c = new_h, new_c
            outputs[t] = h
        else:
            valid = (lengths.to(mapped.device) > t).unsqueeze(-1)
            h, c = torch.where(valid, new_h, h), torch.where(valid, new_c, c)
            outputs[t] = torch.where(valid, new_h, torch.zeros_like(new_h))
    return torch.stack(outputs, 0) if outputs else mapped.new_empty((0, *h.shape)), h, c
