"""Operators of torch, beside the common ones, that CUDA kernels are made of.

A Protocol, since most of them run on CUDA only: tests put decompositions in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

Window = tuple[Sequence[int], Sequence[int], Sequence[int], int]
"""Stride, padding, dilation of a 2-D convolution, and its groups."""


class FusedOps(Protocol):
    """Several steps in one kernel. Images are [batch, channels, height, width]."""

    def convolution_relu(self, x: Tensor, weight: Tensor, bias: Tensor, window: Window) -> Tensor:
        """relu(convolution + bias)."""

    def convolution_add_relu(
        self, x: Tensor, weight: Tensor, summand: Tensor, bias: Tensor, window: Window
    ) -> Tensor:
        """relu(convolution + summand + bias)."""

    def depthwise(self, x: Tensor, weight: Tensor, bias: Tensor | None, window: Window) -> Tensor:
        """Convolution of each channel by itself, by torch's own kernel."""

    def linear_activation(self, rows: Tensor, weight: Tensor, bias: Tensor, gelu: bool) -> Tensor:
        """activation(rows @ weight^T + bias): relu, or gelu by its tanh formula."""


class TorchFusedOps:
    """torch's operators over cuDNN and cuBLASLt."""

    def convolution_relu(self, x: Tensor, weight: Tensor, bias: Tensor, window: Window) -> Tensor:
        """Channels last if either tensor is. Without a bias it would read uninitialised memory."""
        result: Tensor = torch.ops.aten.cudnn_convolution_relu(x, weight, bias, *window)
        return result

    def convolution_add_relu(
        self, x: Tensor, weight: Tensor, summand: Tensor, bias: Tensor, window: Window
    ) -> Tensor:
        """As ``convolution_relu``; the summand in the layout of the result."""
        result: Tensor = torch.ops.aten.cudnn_convolution_add_relu(
            x, weight, summand, 1.0, bias, *window
        )
        return result

    def depthwise(self, x: Tensor, weight: Tensor, bias: Tensor | None, window: Window) -> Tensor:
        stride, padding, dilation, _ = window
        result: Tensor = torch.ops.aten._conv_depthwise2d(
            x, weight, list(weight.shape[2:]), bias, stride, padding, dilation
        )
        return result

    def linear_activation(self, rows: Tensor, weight: Tensor, bias: Tensor, gelu: bool) -> Tensor:
        result: Tensor = torch.ops.aten._addmm_activation(bias, rows, weight.t(), use_gelu=gelu)
        return result
