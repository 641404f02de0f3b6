"""The questions: number, title, environments of the process, and who answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.cuda_questions.answers import Row

if TYPE_CHECKING:  # the process that only listens loads no torch
    from benchmarks.cuda_questions.lab import Lab
    from braid.engine.cuda.backend import CudaBackend

NETWORK = "googlenet"
"""On which questions about whole plans are asked."""

Ask = Callable[[Path], Iterator[Row]]
"""Given a folder for networks, finds rows; on the GPU that the process sees."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question."""

    number: int
    title: str
    ask: Ask
    environments: tuple[Mapping[str, str], ...] = ({},)  # a process for each


def _lab() -> Lab:
    from benchmarks.cuda_questions.lab import Lab
    from braid.engine.cuda.driver.torch_driver import TorchDriver
    from braid.engine.cuda.opening import require_gpu

    require_gpu()
    return Lab(TorchDriver())


def _backend() -> CudaBackend:
    from braid.engine.cuda.opening import open_backend
    from braid.engine.timing.samples import TimerOptions

    return open_backend(1 << 30, TimerOptions(), host_threads=4)


def _device(_: Path) -> Iterator[Row]:
    from benchmarks.cuda_questions import device
    from braid.engine.cuda.identity import read_identity

    yield from device.facts(read_identity())
    yield from device.overlap(_lab())


def _costs(_: Path) -> Iterator[Row]:
    from benchmarks.cuda_questions import costs

    lab = _lab()
    yield from costs.graph_costs(lab)
    yield from costs.pace_steadiness(lab)
    yield from costs.fork_costs(lab)
    yield from costs.growth(lab)


def _kernels(_: Path) -> Iterator[Row]:
    from benchmarks.cuda_questions import kernels

    yield from kernels.convolutions(_lab())


def _sums(folder: Path) -> Iterator[Row]:
    from benchmarks.cuda_questions import plans

    backend = _backend()
    yield from plans.sums_and_wholes(backend, plans.program_of(backend, NETWORK, folder))


def _inductor(_: Path) -> Iterator[Row]:
    from benchmarks.cuda_questions import kernels

    yield from kernels.compiled_units(_lab())


def _memory(folder: Path) -> Iterator[Row]:
    from benchmarks.cuda_questions import plans

    backend = _backend()
    yield from plans.memory(backend, plans.program_of(backend, NETWORK, folder))


_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"

QUESTIONS = (
    Question(
        1,
        "the device; small kernels side by side; connections",
        _device,
        ({_CONNECTIONS: "8"}, {_CONNECTIONS: "32"}),
    ),
    Question(2, "cost of fork, join, capture, instantiation, replay, destruction; growth", _costs),
    Question(3, "convolutions: fused or not, NCHW or NHWC; microseconds, NaN beforehand", _kernels),
    Question(4, "sums of stages against whole graphs; stability of the ranking", _sums),
    Question(5, "Inductor's units on side streams inside a capture", _inductor),
    Question(
        7,
        "memory by when tensors are released; outputs over poisoned memory",
        _memory,
        ({}, {_ALLOCATOR: "graph_capture_record_stream_reuse:True"}),
    ),
)
