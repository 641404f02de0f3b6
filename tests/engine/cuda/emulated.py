"""A plugin of pytest: tests marked ``gpu`` on a CPU that stands in for the GPU.

    pytest -p tests.engine.cuda.emulated -m gpu tests/engine/cuda/{,kernels/}test_on_gpu.py

Real are the driver, the engine and the tests themselves; torch.cuda and cuDNN are stood in for.
Left out is what is about time, TF32, compilers for CUDA and lost devices.
"""

import sys
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from tests.engine.cuda.torch_2_11 import Torch211

NEEDS_A_GPU = ("overlap", "lost_device", "tf32", "silu", "gelu", "linear residual", "weighted")

Ints = Sequence[int]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what only a GPU can show."""
    items[:] = [item for item in items if not any(part in item.name for part in NEEDS_A_GPU)]


@pytest.fixture(autouse=True, scope="session")
def _torch_on_the_cpu() -> Iterator[None]:
    library = torch.library.Library("aten", "IMPL")
    for kernel in (cudnn_convolution, cudnn_convolution_relu, cudnn_convolution_add_relu):
        library.impl(kernel.__name__, kernel, "CPU")
    library.impl("_conv_depthwise2d", depthwise, "CPU")
    with pytest.MonkeyPatch.context() as monkeypatch, Torch211().installed(monkeypatch):
        if poisoning := sys.modules.get("tests.engine.cuda.kernels.test_on_gpu"):
            monkeypatch.setattr(poisoning, "poison", lambda: None)  # of a cache that is not there
        yield


def cudnn_convolution(
    x: Tensor, weight: Tensor, padding: Ints, stride: Ints, dilation: Ints, groups: int, *_: bool
) -> Tensor:
    return torch.conv2d(x, weight, None, stride, padding, dilation, groups)


def cudnn_convolution_relu(
    x: Tensor, weight: Tensor, bias: Tensor, stride: Ints, padding: Ints, dilation: Ints,
    groups: int,
) -> Tensor:  # fmt: skip
    return torch.conv2d(x, weight, bias, stride, padding, dilation, groups).relu()


def cudnn_convolution_add_relu(
    x: Tensor, weight: Tensor, z: Tensor, alpha: float, bias: Tensor, stride: Ints, padding: Ints,
    dilation: Ints, groups: int,
) -> Tensor:  # fmt: skip
    y = torch.conv2d(x, weight, bias, stride, padding, dilation, groups)
    assert z.shape == y.shape, "z is not broadcast"
    return torch.relu(y + alpha * z)


def depthwise(
    x: Tensor, weight: Tensor, size: Ints, bias: Tensor | None, stride: Ints, padding: Ints,
    dilation: Ints,
) -> Tensor:  # fmt: skip
    assert list(size) == list(weight.shape[2:])
    return torch.conv2d(x, weight, bias, stride, padding, dilation, x.shape[1])
