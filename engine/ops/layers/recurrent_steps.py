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

from braid.engine.ops.kinds import operator

Activation = Callable[[Tensor], Tensor]


def activation(name: str, alpha: float | None, beta: float | None) -> Activation:
    """An activation of the recurrent operators.

    Raises:
        ValueError: ONNX has none of that name.
    """

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
class _Cell:
    """One direction: its weights and what its formulas need."""

    r: Tensor  # [gates * hidden, hidden]
    r_bias: Tensor
    peephole: Tensor | None  # [3 * hidden]
    functions: Sequence[Activation]
    clip: float | None
    linear_before_reset: bool
    input_forget: bool

    def clipped(self, x: Tensor) -> Tensor:
        return x if self.clip is None else torch.clamp(x, -self.clip, self.clip)


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
    if cell.linear_before_reset:
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
    forget = 1 - i if cell.input_forget else f(cell.clipped(forget))
    c = forget * c + i * g(cell.clipped(new))
    if cell.peephole is not None:
        o = o + peep_o * c
    return f(cell.clipped(o)) * last(c), c


_STEPS = {"rnn": _rnn, "gru": _gru, "lstm": _lstm}


@operator("braid.recurrent_steps")
def recurrent_steps(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    lengths: Tensor | None,
    hidden_0: Tensor | None,
    cell_0: Tensor | None,
    peepholes: Tensor | None,
    *,
    layer: str,
    hidden: int,
    direction: str,
    activations: Sequence[str],
    alphas: Sequence[float | None],
    betas: Sequence[float | None],
    clip: float | None = None,
    linear_before_reset: bool = False,
    input_forget: bool = False,
    batch_first: bool = False,
) -> tuple[Tensor, ...]:
    """One recurrent layer; operands, results and shapes as ONNX has them.

    ``activations``, ``alphas`` and ``betas`` list one entry for each function of each direction.
    """
    directions = w.shape[0]
    if batch_first:
        x = x.transpose(0, 1)
        hidden_0 = hidden_0.transpose(0, 1) if hidden_0 is not None else None
        cell_0 = cell_0.transpose(0, 1) if cell_0 is not None else None
    zeros = torch.zeros((directions, x.shape[1], hidden), dtype=x.dtype, device=x.device)
    rows = w.shape[1]
    bias = (
        b if b is not None else torch.zeros((directions, 2 * rows), dtype=x.dtype, device=x.device)
    )
    functions = [
        activation(name, alpha, beta)
        for name, alpha, beta in zip(activations, alphas, betas, strict=True)
    ]
    per_direction = len(functions) // directions
    results = []
    for d in range(directions):
        both = bias[d]
        cell = _Cell(
            r[d],
            both[rows:],
            None if peepholes is None else peepholes[d],
            functions[d * per_direction : (d + 1) * per_direction],
            clip,
            linear_before_reset,
            input_forget,
        )
        start = (
            (zeros if hidden_0 is None else hidden_0)[d],
            (zeros if cell_0 is None else cell_0)[d],
        )
        backward = direction == "reverse" or d == 1
        mapped = F.linear(x, w[d], both[:rows])
        results.append(_scan(layer, cell, mapped, start, lengths, backward))
    y = torch.stack([result[0] for result in results], 1)
    h, c = (torch.stack([result[i] for result in results], 0) for i in (1, 2))
    if batch_first:
        y, h, c = y.permute(2, 0, 1, 3), h.transpose(0, 1), c.transpose(0, 1)
    return (y, h, c) if layer == "lstm" else (y, h)


def _scan(
    layer: str,
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
        new_h, new_c = _STEPS[layer](cell, mapped[t], h, c)
        if lengths is None:
            h, c = new_h, new_c
            outputs[t] = h
        else:
            valid = (lengths.to(mapped.device) > t).unsqueeze(-1)
            h, c = torch.where(valid, new_h, h), torch.where(valid, new_c, c)
            outputs[t] = torch.where(valid, new_h, torch.zeros_like(new_h))
    return torch.stack(outputs, 0) if outputs else mapped.new_empty((0, *h.shape)), h, c
