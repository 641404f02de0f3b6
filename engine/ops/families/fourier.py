"""Fourier transforms; complex numbers are pairs in the last axis, as in ONNX."""

import torch
from torch import Tensor

from braid.engine.ops.families.shape import normal_axis, scalar
from braid.engine.ops.kinds import operator


def _complex(x: Tensor) -> Tensor:
    """Return real [..., 1] or complex [..., 2] pairs as a complex tensor [...]."""
    if x.shape[-1] == 1:
        return torch.complex(x[..., 0], torch.zeros_like(x[..., 0]))
    if x.shape[-1] != 2:
        raise ValueError(f"the last axis has extent {x.shape[-1]}: neither real nor complex")
    return torch.complex(x[..., 0].contiguous(), x[..., 1].contiguous())


@operator("braid.dft")
def dft(
    x: Tensor,
    axis: int | list[int] = -2,
    length: int | list[int] | None = None,
    inverse: bool = False,
    onesided: bool = False,
) -> Tensor:
    """Discrete Fourier transform along ``axis`` of pairs, over ``length`` elements."""
    where = normal_axis(int(scalar(axis)), x.dim())
    count = None if length is None else int(scalar(length))
    if inverse and onesided:
        real: Tensor = torch.fft.irfft(_complex(x), count, where).unsqueeze(-1)
        return real
    transform = torch.fft.ifft if inverse else torch.fft.fft
    y = transform(_complex(x), count, where)
    if onesided:
        y = y.narrow(where, 0, y.shape[where] // 2 + 1)
    return torch.view_as_real(y)


@operator("braid.stft")
def stft(
    signal: Tensor,
    window: Tensor | None = None,
    *,
    step: int | list[int],
    length: int | list[int] | None = None,
    onesided: bool = True,
) -> Tensor:
    """Transform frames of [batch, samples, 1 or 2] to [batch, frames, bins, 2]."""
    if signal.dim() == 2:
        signal = signal.unsqueeze(-1)
    count = window.shape[0] if length is None and window is not None else int(scalar(length))
    if window is not None and window.shape != (count,):
        raise ValueError(f"a window of {list(window.shape)} for frames of {count}")
    frames = _complex(signal).unfold(1, count, int(scalar(step)))
    if window is not None:
        frames = frames * window
    y = torch.fft.fft(frames)
    if onesided:
        y = y[..., : count // 2 + 1]
    return torch.view_as_real(y)
