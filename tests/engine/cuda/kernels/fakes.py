"""The fused operators of CUDA taken apart, to run their kernels' arithmetic on CPU."""

import torch
import torch.nn.functional as F
from torch import Tensor

from braid.engine.cuda.kernels.library_units import FusedOps, Window


class DecomposedOps(FusedOps):
    """``FusedOps`` by torch's common operators; remembers what was called."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def convolution_relu(self, x: Tensor, weight: Tensor, bias: Tensor, window: Window) -> Tensor:
        self.called.append("convolution_relu")
        return torch.relu(F.conv2d(x, weight, bias, *window))

    def convolution_add_relu(
        self, x: Tensor, weight: Tensor, summand: Tensor, bias: Tensor, window: Window
    ) -> Tensor:
        self.called.append("convolution_add_relu")
        assert summand.stride() == F.conv2d(x, weight, bias, *window).stride()
        return torch.relu(F.conv2d(x, weight, bias, *window) + summand)

    def depthwise(self, x: Tensor, weight: Tensor, bias: Tensor | None, window: Window) -> Tensor:
        self.called.append("depthwise")
        assert x.is_contiguous()
        return F.conv2d(x, weight, bias, *window)

    def linear_activation(self, rows: Tensor, weight: Tensor, bias: Tensor, gelu: bool) -> Tensor:
        self.called.append("linear_activation")
        y = torch.addmm(bias, rows, weight.t())
        return F.gelu(y, approximate="tanh") if gelu else torch.relu(y)
