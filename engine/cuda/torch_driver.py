"""The driver over torch.cuda: one device, one thread.

The thread's current stream is the origin whenever no other is needed, never the default stream,
which no capture takes. Graphs are captured with ``capture_begin`` and ``capture_end`` in mode
``thread_local``, since ``with torch.cuda.graph`` synchronises and empties caches each time.

Written against torch 2.11 to 2.15. Where versions differ it is said.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter_ns

import torch
from torch import Tensor

from engine.cuda.driver import ORIGIN, Event, Graph, MemoryUse, Partition, Pool, Stream
from engine.cuda.partition import PartitionedStreams, refusal
from engine.kernels.onednn import Run

_URGENT = -1  # torch: lower numbers go first; 0 is normal


@dataclass(frozen=True, slots=True)
class _Capture:
    """A capture under way."""

    graph: torch.cuda.CUDAGraph
    pool: Pool
    origin: Stream
    collect: bool  # whether garbage was collected before it


class TorchDriver:
    """See ``engine.cuda.driver.Driver``."""

    def __init__(self, index: int = 0) -> None:
        """Take a GPU that is known to be there (engine/cuda/presence.py)."""
        self.device = torch.device("cuda", index)
        torch.cuda.set_device(self.device)
        facts = torch.cuda.get_device_properties(self.device)
        self.multiprocessors: int = facts.multi_processor_count
        self._streams: dict[tuple[int, bool, Partition | None], Stream] = {}
        self._partitions: dict[Partition, PartitionedStreams] = {}
        self._capture: _Capture | None = None
        self._refused: list[torch.cuda.CUDAGraph] = []
        self._anchors: dict[Pool, Graph] = {}
        self._current: Stream | None = None
        self._use(self.stream(ORIGIN))

    def stream(
        self, index: int, *, urgent: bool = False, partition: Partition | None = None
    ) -> Stream:
        """The stream of this index and kind; its cuBLAS workspace is there before any capture."""
        key = index, urgent, partition
        if key not in self._streams:
            handle = self._new_stream(index, urgent, partition)
            self._streams[key] = Stream(index, urgent, handle)
            with torch.cuda.stream(handle):
                side = torch.ones(8, 8, device=self.device)
                torch.mm(side, side)
        return self._streams[key]

    def _new_stream(
        self, index: int, urgent: bool, partition: Partition | None
    ) -> torch.cuda.Stream:
        priority = _URGENT if urgent else 0
        if partition is None:
            return torch.cuda.Stream(self.device, priority=priority)
        if partition not in self._partitions:
            self._partitions[partition] = PartitionedStreams(self.device, partition)
        return self._partitions[partition].stream(index, priority)

    def partition_refusal(self, partition: Partition) -> str:
        """Why the device cannot be partitioned like this; empty if it can."""
        if partition in self._partitions:
            return ""
        reason = refusal(partition, self.multiprocessors)
        if reason:
            return reason
        try:
            self._partitions[partition] = PartitionedStreams(self.device, partition)
        except RuntimeError as error:
            return str(error)
        return ""

    def _use(self, stream: Stream) -> None:
        if stream is not self._current:
            torch.cuda.set_stream(stream.handle)
            self._current = stream

    def launch(self, stream: Stream, run: Run, inputs: Sequence[Tensor | None]) -> list[Tensor]:
        """Put the kernels of ``run(*inputs)`` on a stream; returns at once."""
        self._use(stream)
        results = run(*inputs)
        return [results] if isinstance(results, Tensor) else list(results)

    def event(self, *, timed: bool = False) -> Event:
        """A new event."""
        return Event(timed, torch.cuda.Event(enable_timing=timed))

    def record(self, event: Event, stream: Stream) -> None:
        """Let an event stand for all work on ``stream`` so far."""
        event.handle.record(stream.handle)

    def wait(self, event: Event, stream: Stream) -> None:
        """Further work on ``stream`` begins after what the event stands for."""
        event.handle.wait(stream.handle)

    def reached(self, event: Event) -> bool:
        """Whether all that an event stands for is done; does not wait."""
        return bool(event.handle.query())

    def elapsed_us(self, start: Event, end: Event) -> float:
        """Device time between two timed events that have been reached."""
        return float(start.handle.elapsed_time(end.handle)) * 1e3

    def pool(self) -> Pool:
        """A new pool, anchored: torch refuses one that no graph uses but that still has blocks."""
        pool = Pool(torch.cuda.graph_pool_handle())
        seed = torch.zeros(1, device=self.device)
        origin = self.stream(ORIGIN)
        self.launch(origin, torch.relu, [seed])  # loaded before it is captured
        self.begin_capture(origin, pool)
        self.launch(origin, torch.relu, [seed])
        self._anchors[pool] = self.end_capture()
        return pool

    def release_pool(self, pool: Pool) -> None:
        """Give a pool's memory back; its graphs have been destroyed."""
        self.destroy(self._anchors.pop(pool))

    def begin_capture(self, origin: Stream, pool: Pool) -> None:
        """Begin; no garbage is collected meanwhile, which is slow and may free what CUDA minds."""
        assert self._capture is None, "one capture at a time"
        self._use(origin)
        self._capture = _Capture(torch.cuda.CUDAGraph(), pool, origin, gc.isenabled())
        gc.disable()
        self._capture.graph.capture_begin(pool=pool.handle, capture_error_mode="thread_local")

    def end_capture(self) -> Graph:
        """Instantiate what was captured."""
        assert self._capture is not None, "no capture is under way"
        self._use(self._capture.origin)
        began = perf_counter_ns()
        self._capture.graph.capture_end()
        graph = Graph((perf_counter_ns() - began) / 1e3, self._capture.graph)
        self._leave_capture(self._capture)
        return graph

    def abort_capture(self, joined: Sequence[Stream]) -> None:
        """Drop a capture that failed.

        Streams that were forked are joined first: with loose ends CUDA refuses to end a capture.
        Before torch 2.12 a refusal leaves the allocators routing to the pool. The device's is ended
        here; the one for pinned memory cannot be, and goes on asking the graph object whether an
        allocation belongs to its capture, so the object is kept.
        """
        failed = self._capture
        if failed is None:
            return
        for stream in joined:
            with suppress(RuntimeError):
                self._use(stream)
                if stream is not failed.origin and torch.cuda.is_current_stream_capturing():
                    end = self.event()
                    self.record(end, stream)
                    self.wait(end, failed.origin)
        with suppress(RuntimeError):
            self._use(failed.origin)
        try:
            failed.graph.capture_end()
        except RuntimeError:
            self._refused.append(failed.graph)
            with suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(self.device.index, failed.pool.handle)
        with suppress(RuntimeError):
            failed.graph.reset()
        with suppress(RuntimeError):
            self._leave_capture(failed)

    def _leave_capture(self, capture: _Capture) -> None:
        self._capture = None
        if capture.collect:
            gc.enable()
        self._use(self.stream(ORIGIN))

    def replay(self, graph: Graph, stream: Stream) -> None:
        """Put a whole graph on a stream."""
        self._use(stream)
        graph.handle.replay()

    def destroy(self, graph: Graph) -> None:
        """Free a graph at once."""
        graph.handle.reset()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Uninitialised contiguous memory on the device, owned by the origin stream."""
        self._use(self.stream(ORIGIN))
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Uninitialised page-locked host memory."""
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def copy(self, target: Tensor, source: Tensor, stream: Stream) -> None:
        """Put a copy on a stream."""
        self._use(stream)
        target.copy_(source, non_blocking=True)

    def synchronise(self, event: Event | None = None) -> None:
        """Block until an event, or all work on the device, is done."""
        if event is not None:
            event.handle.synchronize()
        else:
            torch.cuda.synchronize(self.device)
            self._use(self.stream(ORIGIN))

    def memory(self) -> MemoryUse:
        """Memory in use now."""
        known = torch.cuda.memory_stats(self.device)
        free, total = torch.cuda.mem_get_info(self.device)
        return MemoryUse(
            allocated=known.get("allocated_bytes.all.current", 0),
            peak_allocated=known.get("allocated_bytes.all.peak", 0),
            reserved=known.get("reserved_bytes.all.current", 0),
            device_free=free,
            device_total=total,
        )

    def reset_peak(self) -> None:
        """Start a new measurement of ``MemoryUse.peak_allocated``."""
        torch.cuda.reset_peak_memory_stats(self.device)

    def trim(self) -> None:
        """Give memory that no tensor uses back to the device."""
        gc.collect()
        torch.cuda.empty_cache()
