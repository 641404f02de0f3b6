"""Precision of CUDA's libraries on FP32 data: process-wide switches of torch, pinned.

    pin_fp32()              when kernels for a device are made: FP32 means FP32
    with tensor_float_32(): around the kernels of a model registered with ``tf32``

cuDNN would use TF32 by default and cuBLAS would not. The switches count when a kernel is launched
or captured, so a replayed graph keeps what it was captured with. One thread launches on a device.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def pin_fp32() -> None:
    """Multiply FP32 in FP32, sum half types in FP32, and let cuDNN try its algorithms."""
    _set_tf32(False)
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cudnn.benchmark = True
    keep = getattr(
        torch._C, "_cudnn_set_conv_benchmark_empty_cache", None
    )  # builds for CUDA have it
    if keep is not None:
        keep(False)  # else the allocator gives all it has cached back after each trial


@contextmanager
def tensor_float_32() -> Iterator[None]:
    """Let FP32 operands be rounded to TF32's 10 bits in the body."""
    _set_tf32(True)
    try:
        yield
    finally:
        _set_tf32(False)


def _set_tf32(allowed: bool) -> None:
    """Set TF32 by the older switches, which set the newer ones, too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions announce that the older ones will go
        torch.backends.cuda.matmul.allow_tf32 = allowed
        torch.backends.cudnn.allow_tf32 = allowed
