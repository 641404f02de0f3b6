"""Errors of torch and CUDA, by code or by what they say."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from braid.core.errors import BraidError, DeviceLost, DeviceOutOfMemory
from braid.engine.cuda.driver.faults import CaptureFailed, classified, classify
from tests.engine.cuda.recording import CudaError

CASES: list[tuple[Exception, type[BraidError] | None]] = [
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), DeviceOutOfMemory),
    (CudaError("out of memory", 2), DeviceOutOfMemory),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), DeviceOutOfMemory),
    (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), DeviceOutOfMemory),
    (CudaError("an illegal memory access was encountered", 700), DeviceLost),
    (CudaError("device-side assert triggered", 710), DeviceLost),
    (CudaError("uncorrectable ECC error encountered", 214), DeviceLost),
    (RuntimeError("CUDA error: unspecified launch failure"), DeviceLost),
    (CudaError("operation not permitted when stream is capturing", 900), CaptureFailed),
    (CudaError("operation failed due to a previous error during capture", 901), CaptureFailed),
    (RuntimeError("CUDA error: operation not permitted when stream is capturing"), CaptureFailed),
    (CudaError("invalid argument", 1), None),
    (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
    (ValueError("out of memory is not what this is about"), None),
]


@pytest.mark.parametrize(("error", "kind"), CASES, ids=[str(error)[:40] for error, _ in CASES])
def test_errors_are_told_apart(error: Exception, kind: type[BraidError] | None) -> None:
    known = classify(error, "trying")

    assert (None if known is None else type(known)) is kind


def test_what_is_not_the_device_s_fault_passes_unchanged() -> None:
    with pytest.raises(ValueError, match="mine"), classified("trying"):
        raise ValueError("mine")


def test_a_classified_error_holds_no_tensors_of_the_work_that_failed() -> None:
    def work() -> None:
        tensor = torch.zeros(8)
        alive.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    alive: list[weakref.ref[torch.Tensor]] = []
    gc.disable()
    try:
        with pytest.raises(DeviceOutOfMemory) as caught, classified("trying"):
            work()
        assert alive[0]() is None
        assert caught.value.__cause__ is not None
    finally:
        gc.enable()
