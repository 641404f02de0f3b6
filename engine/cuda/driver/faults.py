"""Errors of the device: out of memory, a lost context, work that cannot be captured.

    error of torch ──classified──> DeviceOutOfMemory   fails one job or request
                              ├──> DeviceLost          the process must end: CUDA answers no more
                              ├──> CaptureFailed       the plan runs on eager streams instead
                              └──> the error itself    not the device's fault

Codes are those of ``cudaError_t`` (driver_types.h). An error is *sticky* if every later call in
the process returns it too.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import clear_frames, format_tb

import torch

from braid.core.errors import BraidError, DeviceLost, DeviceOutOfMemory

_OUT_OF_MEMORY = 2
_CAPTURE = range(900, 909)
_UNKNOWN = 999
_STICKY = {
    *(226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911),
    *(46, 100, 101, 214, 220, 709, 806, _UNKNOWN),
}
"""First row: the header says of them that "the process must be terminated and relaunched".
Second row: the device is unavailable or gone, its memory or NVLink has an uncorrectable error, its
context is destroyed, its MPS server does not answer; an unknown error.

Not sticky: 713 (memory that is not registered) and 720 (a cooperative launch that is too large)."""

_TEXTS = (
    (re.compile(r"out of memory|_STATUS_ALLOC_FAILED"), _OUT_OF_MEMORY),
    (
        re.compile(
            "stream is capturing|stream capture|capturing (blocking )?stream|CUDA graph capture"
            "|error during capture|capture sequence|capture was not ended|on uncaptured work"
        ),
        _CAPTURE[0],
    ),
    (re.compile(r"illegal memory access|misaligned address|peer GPU memory over nvlink"), 700),
    (re.compile(r"device-side assert"), 710),
    (re.compile(r"unspecified launch failure|illegal instruction|invalid program counter"), 719),
    (re.compile(r"global/shared address space|tensor memory not completely freed"), 717),
    (re.compile(r"uncorrectable (ECC|NVLink) error|hardware stack error"), 214),
    (re.compile(r"launch timed out"), 702),
    (re.compile(r"context is destroyed|invalid device ordinal"), 709),
    (re.compile(r"MPS client has been terminated|between the MPS server and the MPS client"), 810),
    (re.compile(r"external entity outside of CUDA"), 911),
    (re.compile(r"unknown error|busy or unavailable|no CUDA-capable device"), _UNKNOWN),
)
"""Pattern of a message -> code that it stands for, for errors that carry no code."""


class CaptureFailed(BraidError):
    """This work cannot be captured into a graph; it can run on eager streams. Internal."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"CUDA graph capture failed: {reason}")
        self.reason = reason


@contextmanager
def classified(doing: str) -> Iterator[None]:
    """Turn errors of the device into Braid's, with ``doing`` in the message; others pass."""
    try:
        yield
    except BraidError:
        raise
    except Exception as error:
        braid_error = classify(error, doing)
        if braid_error is None:
            raise
        try:
            raise braid_error from without_frames(error)
        finally:
            del braid_error  # or it would live on in its own traceback


def without_frames(error: Exception) -> Exception:
    """``error`` without frames, which hold tensors in a cycle; a note keeps their text."""
    part: BaseException | None = error
    while part is not None:
        if part.__traceback__ is not None:
            part.add_note("".join(format_tb(part.__traceback__)).rstrip())
            clear_frames(part.__traceback__)
            part.__traceback__ = None
        part = part.__cause__ or part.__context__
    return error


def classify(error: BaseException, doing: str) -> BraidError | None:
    """The Braid error that an error of torch stands for; None if it is not the device's."""
    code = _code(error)
    line = first_line(error)
    if isinstance(error, torch.OutOfMemoryError) or code == _OUT_OF_MEMORY:
        return DeviceOutOfMemory(
            f"the GPU ran out of memory while {doing}: {line}", retry_after_s=1.0
        )
    if code in _STICKY:
        return DeviceLost(f"the GPU failed while {doing}: {line}")
    if code in _CAPTURE:
        return CaptureFailed(line)
    return None


def _code(error: BaseException) -> int | None:
    """The ``cudaError_t`` behind an error: what torch says it is, or what its message means."""
    if not isinstance(error, RuntimeError):
        return None
    code = getattr(error, "error_code", None)  # of torch.AcceleratorError
    if isinstance(code, int):
        return code
    text = str(error)
    return next((code for pattern, code in _TEXTS if pattern.search(text)), None)


def first_line(error: BaseException) -> str:
    line = str(error).strip().partition("\n")[0]
    return (line or type(error).__name__)[:200]
