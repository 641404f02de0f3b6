"""Errors of CUDA told apart, and the identity of a GPU."""

import gc
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from braid.core.errors import BraidError, DeviceLost, DeviceOutOfMemory
from braid.engine.cuda.driver.faults import CaptureFailed, classified, classify
from braid.engine.cuda.identity import driver_version
from tests.engine.cuda.recording import CudaError
from tests.engine.cuda.serving import GPU

CASES: list[tuple[Exception, type[BraidError] | None]] = [
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), DeviceOutOfMemory),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), DeviceOutOfMemory),
    (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), DeviceOutOfMemory),
    (CudaError("invalid argument", 1), None),
    (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
    (ValueError("out of memory is not what this is about"), None),
]


@pytest.mark.parametrize(("error", "kind"), CASES, ids=[str(error)[:40] for error, _ in CASES])
def test_errors_are_told_apart(error: Exception, kind: type[BraidError] | None) -> None:
    known = classify(error, "trying")

    assert (None if known is None else type(known)) is kind


CODES: dict[int, tuple[str, type[BraidError] | None]] = {
    2: ("out of memory", DeviceOutOfMemory),
    46: ("CUDA-capable device(s) is/are busy or unavailable", DeviceLost),
    100: ("no CUDA-capable device is detected", DeviceLost),
    101: ("invalid device ordinal", DeviceLost),
    209: ("no kernel image is available for execution on the device", None),
    214: ("uncorrectable ECC error encountered", DeviceLost),
    220: ("uncorrectable NVLink error detected during the execution", DeviceLost),
    226: ("Invalid access of peer GPU memory over nvlink or a hardware error", DeviceLost),
    700: ("an illegal memory access was encountered", DeviceLost),
    702: ("the launch timed out and was terminated", DeviceLost),
    709: ("context is destroyed", DeviceLost),
    710: ("device-side assert triggered", DeviceLost),
    713: ("pointer does not correspond to a registered memory region", None),
    714: ("hardware stack error", DeviceLost),
    715: ("an illegal instruction was encountered", DeviceLost),
    716: ("misaligned address", DeviceLost),
    717: ("operation not supported on global/shared address space", DeviceLost),
    718: ("invalid program counter", DeviceLost),
    719: ("unspecified launch failure", DeviceLost),
    720: ("too many blocks in cooperative launch", None),
    721: ("tensor memory not completely freed", DeviceLost),
    801: ("operation not supported", None),
    806: (
        "the remote procedural call between the MPS server and the MPS client failed",
        DeviceLost,
    ),
    810: ("the MPS client has been terminated by the server", DeviceLost),
    900: ("operation not permitted when stream is capturing", CaptureFailed),
    901: ("operation failed due to a previous error during capture", CaptureFailed),
    902: ("operation would result in a merge of separate capture sequences", CaptureFailed),
    903: ("capture was not ended in the same stream as it began", CaptureFailed),
    904: ("capturing stream has unjoined work", CaptureFailed),
    905: ("dependency created on uncaptured work in another stream", CaptureFailed),
    906: (
        "operation would make the legacy stream depend on a capturing blocking stream",
        CaptureFailed,
    ),
    907: ("operation not permitted on an event last recorded in a capturing stream", CaptureFailed),
    908: (
        "attempt to terminate a thread-local capture sequence from another thread",
        CaptureFailed,
    ),
    911: ("an async error has occured in external entity outside of CUDA", DeviceLost),
    999: ("unknown error", DeviceLost),
}
"""cudaError_t of CUDA 13.0 -> what cudaGetErrorString says. Lost is what driver_types.h says cannot
be continued after without a new process, and a device or server that is gone."""


@pytest.mark.parametrize("code", CODES)
def test_codes_of_cuda_mean_what_its_header_says_with_and_without_the_number(code: int) -> None:
    text, kind = CODES[code]
    for error in (CudaError(text, code), RuntimeError(f"CUDA error: {text}")):
        known = classify(error, "trying")
        assert (None if known is None else type(known)) is kind, error


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


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:16:27 UTC 2025",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build",
    ],
)
def test_the_driver_s_version_is_read_from_either_kernel_module(tmp_path: Path, text: str) -> None:
    file = tmp_path / "version"
    file.write_text(f"{text}\nGCC version:  gcc version 13.3.0\n")

    assert driver_version(file) == "580.65.06"


def test_every_fact_changes_the_key() -> None:
    others = [
        replace(GPU, name="NVIDIA H100"),
        replace(GPU, capability=(10, 0)),
        replace(GPU, multiprocessors=114),
        replace(GPU, memory_bytes=80 << 30),
        replace(GPU, driver="550.1"),
        replace(GPU, cuda="12.8"),
        replace(GPU, cudnn="90100"),
        replace(GPU, torch="2.12.0"),
    ]

    assert len({GPU.device_key, *(other.device_key for other in others)}) == 9
