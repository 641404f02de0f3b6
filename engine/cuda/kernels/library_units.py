"""Convolutions and linear layers on CUDA: the ways of cuDNN and cuBLASLt to compute one.

    convolutions(site)    conv-relu.*   cuDNN's convolution + bias (+ residual sum) + ReLU
                          conv.*        the convolution, then bias, sum and epilogue
                          gemm.nhwc     1x1 over channels_last images is a matrix product
                          depthwise.*   torch's own kernel
    linears(site)         gemm-act      cuBLASLt's bias and activation epilogue
                          gemm-sum      the residual sum as what the product is added to

``.nchw`` and ``.nhwc``: in contiguous or channels_last memory; an image that comes otherwise is
copied first. A kernel's first run makes its weight's layout, so it comes before any capture.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from braid.core.attributes import image_window
from braid.core.graph import Operator
from braid.engine.cuda.kernels.fallback_kernel import reject_residue
from braid.engine.ops.kinds import EPILOGUE, epilogue_steps
from braid.engine.program.kernel import Kernel, PackedWeights

FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}

Step = Callable[[Tensor], Tensor]

Window = tuple[Sequence[int], Sequence[int], Sequence[int], int]
"""Stride, padding, dilation of a 2-D convolution, and its groups."""


class FusedOps:
    """Several steps in one kernel. Images are [batch, channels, height, width].

    Most run on CUDA only: tests put decompositions in their place.
    """

    def convolution_relu(self, x: Tensor, weight: Tensor, bias: Tensor, window: Window) -> Tensor:
        """relu(convolution + bias); channels last if either tensor is.

        Without a bias it would read uninitialised memory.
        """
        result: Tensor = torch.ops.aten.cudnn_convolution_relu(x, weight, bias, *window)
        return result

    def convolution_add_relu(
        self, x: Tensor, weight: Tensor, summand: Tensor, bias: Tensor, window: Window
    ) -> Tensor:
        """relu(convolution + summand + bias); the summand in the layout of the result."""
        result: Tensor = torch.ops.aten.cudnn_convolution_add_relu(
            x, weight, summand, 1.0, bias, *window
        )
        return result

    def depthwise(self, x: Tensor, weight: Tensor, bias: Tensor | None, window: Window) -> Tensor:
        """Convolution of each channel by itself, by torch's own kernel."""
        stride, padding, dilation, _ = window
        result: Tensor = torch.ops.aten._conv_depthwise2d(
            x, weight, list(weight.shape[2:]), bias, stride, padding, dilation
        )
        return result

    def linear_activation(self, rows: Tensor, weight: Tensor, bias: Tensor, gelu: bool) -> Tensor:
        """activation(rows @ weight^T + bias): relu, or gelu by its tanh formula."""
        result: Tensor = torch.ops.aten._addmm_activation(bias, rows, weight.t(), use_gelu=gelu)
        return result


@dataclass(frozen=True, slots=True)
class CudaSite:
    """One unit whose weight, and bias if it has one, are constants of one float type."""

    unit: Operator
    weight: Tensor
    bias: Tensor | None
    packed: PackedWeights
    ops: FusedOps
    layouts: Sequence[str]  # of FORMATS, the one to try first first

    @property
    def has_sum(self) -> bool:
        """Whether the unit's fourth operand is added before its epilogue."""
        return self.unit.kind.endswith("_add")

    @property
    def steps(self) -> list[tuple[str, dict[str, object]]]:
        literal = self.unit.attributes.get(EPILOGUE)
        return [(definition.kind, given) for definition, given in epilogue_steps(literal)]

    def weight_in(self, layout: str) -> Tensor:
        key = "layout", self.unit.inputs[1], layout
        return self.packed.derived(
            key, self.weight, lambda: self.weight.contiguous(memory_format=FORMATS[layout])
        )

    def some_bias(self) -> Tensor:
        """The bias, zeros if there is none: fused kernels want one."""
        if self.bias is not None:
            return self.bias
        key = "zeros", self.unit.inputs[1]
        return self.packed.derived(
            key, self.weight, lambda: self.weight.new_zeros(self.weight.shape[0])
        )

    def epilogue(self, skip: int = 0) -> Step:
        """The unit's epilogue without its first ``skip`` steps; it may overwrite its operand."""
        steps = epilogue_steps(self.unit.attributes.get(EPILOGUE))[skip:]

        def apply(y: Tensor) -> Tensor:
            for definition, given in steps:
                if definition.kind == "aten.relu":
                    y = torch.relu_(y)
                    continue
                result = definition.run(y, **given)
                assert isinstance(result, Tensor), "an epilogue is unary"
                y = result
            return y

        return apply


def convolutions(site: CudaSite) -> list[Kernel]:
    """Depthwise convolutions are left to torch.

    On an H100 cuDNN took up to 1.5 times as long in NCHW, the same in NHWC, fused with a ReLU never
    less, and up to a second to look for each (decision 0068).
    """
    channels = site.weight.shape[0]
    groups = image_window(site.unit)[3]
    depthwise = groups > 1 and site.weight.shape[1] == 1 and channels % groups == 0
    kernels = []
    for layout in site.layouts:
        if layout == "nhwc" and _is_pointwise(site):
            kernels.append(_pointwise(site))
        if depthwise and layout == "nchw":
            kernels.append(_depthwise(site))
        elif not depthwise and site.steps[:1] == [("aten.relu", {})]:
            kernels.append(_convolution_relu(site, layout))
        kernels.append(_convolution(site, layout))
    return kernels


def _convolution_relu(site: CudaSite, layout: str) -> Kernel:
    """torch gives cuDNN the result's own memory as what is added, times 0: looked at at first."""
    window, finish, ops = image_window(site.unit), site.epilogue(skip=1), site.ops
    checked: list[bool] = []

    def run(
        x: Tensor, _: Tensor, __: Tensor | None = None, summand: Tensor | None = None
    ) -> Tensor:
        x = x.contiguous(memory_format=FORMATS[layout])
        weight, bias = site.weight_in(layout), site.some_bias()
        if summand is None:
            if not checked:
                reject_residue(lambda: ops.convolution_relu(x, weight, bias, window))
                checked.append(True)
            return finish(ops.convolution_relu(x, weight, bias, window))
        summand = summand.contiguous(memory_format=FORMATS[layout])
        return finish(ops.convolution_add_relu(x, weight, summand, bias, window))

    return Kernel(f"conv-relu.{layout}", run, needs_finite=True)


def _convolution(site: CudaSite, layout: str) -> Kernel:
    window, finish = image_window(site.unit), site.epilogue()
    stride, padding, dilation, groups = window

    def run(
        x: Tensor, _: Tensor, bias: Tensor | None = None, summand: Tensor | None = None
    ) -> Tensor:
        x = x.contiguous(memory_format=FORMATS[layout])
        weight = site.weight_in(layout)
        y = torch.conv2d(x, weight, bias, stride, padding, dilation, groups)
        return finish(y if summand is None else y.add_(summand))

    return Kernel(f"conv.{layout}", run)


def _depthwise(site: CudaSite) -> Kernel:
    window, finish = image_window(site.unit), site.epilogue()

    def run(
        x: Tensor, _: Tensor, bias: Tensor | None = None, summand: Tensor | None = None
    ) -> Tensor:
        y = site.ops.depthwise(x.contiguous(), site.weight_in("nchw"), bias, window)
        return finish(y if summand is None else y.add_(summand))

    return Kernel("depthwise.nchw", run)


def _is_pointwise(site: CudaSite) -> bool:
    stride, padding, _, groups = image_window(site.unit)
    return (
        tuple(site.weight.shape[2:]) == (1, 1)
        and groups == 1
        and set(stride) == {1}
        and set(padding) == {0}
    )


def _pointwise(site: CudaSite) -> Kernel:
    """Positions are rows: channels_last images are matrices already."""
    multiply, needs_finite = _product(site)

    def run(
        x: Tensor, _: Tensor, __: Tensor | None = None, summand: Tensor | None = None
    ) -> Tensor:
        batch, _channels, height, width = x.shape
        rows = _rows(x)
        y = multiply(rows, site.weight.flatten(1), None if summand is None else _rows(summand))
        return y.reshape(batch, height, width, -1).permute(0, 3, 1, 2)

    return Kernel("gemm.nhwc", run, needs_finite=needs_finite)


def _rows(image: Tensor) -> Tensor:
    """[batch * height * width, channels], a view if the image is channels_last."""
    return image.permute(0, 2, 3, 1).contiguous().flatten(0, 2)


def linears(site: CudaSite) -> list[Kernel]:
    multiply, needs_finite = _product(site)

    def run(
        x: Tensor, weight: Tensor, _: Tensor | None = None, summand: Tensor | None = None
    ) -> Tensor:
        added = None if summand is None else summand.reshape(-1, weight.shape[0])
        y = multiply(x.reshape(-1, weight.shape[1]), weight, added)
        return y.reshape(*x.shape[:-1], weight.shape[0])

    name = "gemm-sum" if site.has_sum else "gemm-act"
    return [Kernel(name, run, needs_finite=needs_finite)]


def _product(
    site: CudaSite,
) -> tuple[Callable[[Tensor, Tensor, Tensor | None], Tensor], bool]:
    """rows [n, in], weight [out, in], summand [n, out] -> [n, out]; whether it needs finite rows.

    cuBLASLt fuses the bias, and one activation where nothing is summed in between.
    """
    activations: Mapping[object, bool] = {
        ("aten.relu", ()): False,
        ("aten.gelu", (("approximate", "tanh"),)): True,
    }
    first = next(((kind, tuple(given.items())) for kind, given in site.steps), None)
    fused = activations.get(first) if first is not None and not site.has_sum else None
    finish = site.epilogue(skip=0 if fused is None else 1)

    def multiply(rows: Tensor, weight: Tensor, summand: Tensor | None) -> Tensor:
        if fused is not None:
            return finish(site.ops.linear_activation(rows, weight, site.some_bias(), fused))
        if summand is not None and site.bias is None:
            return finish(torch.addmm(summand, rows, weight.t()))
        y = (
            torch.mm(rows, weight.t())
            if site.bias is None
            else torch.addmm(site.bias, rows, weight.t())
        )
        return finish(y if summand is None else y.add_(summand))

    return multiply, fused is not None
