"""Interface between the CUDA engine and CUDA: everything that it calls.

    executor, timer ──> Driver ──> torch.cuda              (torch_driver.py)
                           └─────> a recording fake        (tests/engine/cuda/recording.py)

A driver belongs to one device and one thread: kernels are warmed up, captured and replayed there.
Work goes to a stream in the order of the calls; streams are ordered by events only. What a driver
hands out (``Stream``, ``Event``, ``Graph``, ``Pool``) means something to that driver alone.

Memory follows torch's caching allocator: a block belongs to the stream that was current when it
was allocated, comes back when the last tensor in it is gone, and is given again to the same stream
only, at once, whatever other streams still do with it. That is why tensors are released late
(engine/cuda/graphs/release.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from braid.engine.program.kernel import Run

ORIGIN = 0  # stream on which captures begin and end and graphs replay


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """A CUDA stream: work on it is done in order."""

    index: int
    handle: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """A point in the work of a stream, once recorded there."""

    timed: bool
    handle: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Memory of captured graphs. Graphs of one pool may share it, so they must replay in turns."""

    handle: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A capture, ready to replay."""

    handle: Any = None


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Device memory of this process, in bytes."""

    allocated: int  # by tensors
    peak_allocated: int  # since ``reset_peak``
    reserved: int  # by the allocator, from the device


class Driver(Protocol):
    """One CUDA device as one thread uses it.

    Any call may raise what ``braid.engine.cuda.driver.faults.classified`` turns into Braid's
    errors; those of earlier work on the device show up late, mostly in a ``synchronise``.
    """

    device: torch.device

    def stream(self, index: int) -> Stream:
        """The stream of this index: the same one each time."""

    def launch(self, stream: Stream, run: Run, inputs: Sequence[Tensor | None]) -> list[Tensor]:
        """Put the kernels of ``run(*inputs)`` on a stream; returns at once."""

    def event(self, *, timed: bool = False) -> Event: ...

    def record(self, event: Event, stream: Stream) -> None:
        """Let an event stand for all work on ``stream`` so far."""

    def wait(self, event: Event, stream: Stream) -> None:
        """Further work on ``stream`` begins after what the event stands for."""

    def reached(self, event: Event) -> bool:
        """Whether all that an event stands for is done; does not wait."""

    def elapsed_us(self, start: Event, end: Event) -> float:
        """Device time between two timed events that have been reached."""

    def pool(self) -> Pool:
        """A new pool, kept until ``release_pool`` even if no graph uses it."""

    def release_pool(self, pool: Pool) -> None:
        """Give a pool's memory back; its graphs have been destroyed."""

    def begin_capture(self, origin: Stream, pool: Pool) -> None:
        """Record work instead of doing it, on ``origin`` and what waits for it, until the end."""

    def end_capture(self) -> Graph:
        """Instantiate what was captured. All other streams have been joined."""

    def abort_capture(self, joined: Sequence[Stream]) -> None:
        """Drop a capture that failed, whose work so far reached these streams; never raises."""

    def replay(self, graph: Graph, stream: Stream) -> None: ...

    def destroy(self, graph: Graph) -> None:
        """Free a graph at once. It is not running and will not be replayed."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Uninitialised contiguous memory on the device, owned by the origin stream."""

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Uninitialised page-locked host memory, which copies need in order to be asynchronous."""

    def lock_pages(self, memory: Tensor) -> None:
        """Make host memory page-locked. It stays where it is until the process ends."""

    def copy(self, target: Tensor, source: Tensor, stream: Stream) -> None:
        """Put a copy between device memory and page-locked or device memory on a stream."""

    def synchronise(self, event: Event | None = None) -> None:
        """Block until an event, or all work on the device, is done."""

    def memory(self) -> MemoryUse: ...

    def reset_peak(self) -> None:
        """Start a new measurement of ``MemoryUse.peak_allocated``."""

    def trim(self) -> None:
        """Give memory that no tensor uses back to the device."""
