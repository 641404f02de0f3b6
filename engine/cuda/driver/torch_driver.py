"""The driver over torch.cuda: one device, one thread.

The thread's current stream is the origin whenever no other is needed, never the default stream,
which no capture takes. Captures and pools are in ``torch_capture.py``.

Written against torch 2.11 to 2.15. Where versions differ it is said.
"""

import gc
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from braid.engine.cuda.driver.interface import (
    ORIGIN,
    Event,
    Graph,
    MemoryUse,
    Pool,
    Stream,
)
from braid.engine.cuda.driver.torch_capture import Captures
from braid.engine.program.kernel import Run


class TorchDriver:
    """A ``Driver`` over torch.cuda."""

    def __init__(self, index: int = 0) -> None:
        self.device = torch.device("cuda", index)
        torch.cuda.set_device(self.device)
        self._streams: dict[int, Stream] = {}
        self._captures = Captures(self.device, self._use)
        self._current: torch.cuda.Stream | None = None
        self._use(self.stream(ORIGIN).handle)

    def stream(self, index: int) -> Stream:
        """The stream of this index; its cuBLAS workspace is made before any capture."""
        if index not in self._streams:
            handle = torch.cuda.Stream(self.device)
            with torch.cuda.stream(handle):
                side = torch.ones(8, 8, device=self.device)
                torch.mm(side, side)
            self._streams[index] = Stream(index, handle)
        return self._streams[index]

    def _use(self, stream: torch.cuda.Stream) -> None:
        if stream is not self._current:
            torch.cuda.set_stream(stream)
            self._current = stream

    def launch(self, stream: Stream, run: Run, inputs: Sequence[Tensor | None]) -> list[Tensor]:
        self._use(stream.handle)
        results = run(*inputs)
        return [results] if isinstance(results, Tensor) else list(results)

    def event(self, *, timed: bool = False) -> Event:
        return Event(timed, torch.cuda.Event(enable_timing=timed))

    def record(self, event: Event, stream: Stream) -> None:
        event.handle.record(stream.handle)

    def wait(self, event: Event, stream: Stream) -> None:
        event.handle.wait(stream.handle)

    def reached(self, event: Event) -> bool:
        return bool(event.handle.query())

    def elapsed_us(self, start: Event, end: Event) -> float:
        return float(start.handle.elapsed_time(end.handle)) * 1e3

    def pool(self) -> Pool:
        return self._captures.pool(self.stream(ORIGIN).handle)

    def release_pool(self, pool: Pool) -> None:
        self._captures.release(pool)

    def begin_capture(self, origin: Stream, pool: Pool) -> None:
        self._captures.begin(origin.handle, pool)

    def end_capture(self) -> Graph:
        graph = self._captures.end()
        self._use(self.stream(ORIGIN).handle)
        return graph

    def abort_capture(self, joined: Sequence[Stream]) -> None:
        self._captures.abort([stream.handle for stream in joined])
        with suppress(RuntimeError):
            self._use(self.stream(ORIGIN).handle)

    def replay(self, graph: Graph, stream: Stream) -> None:
        self._use(stream.handle)
        graph.handle.replay()

    def destroy(self, graph: Graph) -> None:
        self._captures.destroy(graph)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        self._use(self.stream(ORIGIN).handle)
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        # On the CPU even where the GPU is torch's default device.
        return torch.empty(tuple(shape), dtype=dtype, device="cpu", pin_memory=True)

    def lock_pages(self, memory: Tensor) -> None:
        cuda: Any = torch.cuda  # typed in some builds only
        answer = cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
        try:
            cuda.check_error(answer)
        except RuntimeError:
            with suppress(RuntimeError):  # CUDA tells the next call, too
                torch.zeros(1, device=self.device)
            raise

    def copy(self, target: Tensor, source: Tensor, stream: Stream) -> None:
        self._use(stream.handle)
        target.copy_(source, non_blocking=True)

    def synchronise(self, event: Event | None = None) -> None:
        if event is not None:
            event.handle.synchronize()
        else:
            torch.cuda.synchronize(self.device)
            self._use(self.stream(ORIGIN).handle)

    def memory(self) -> MemoryUse:
        # Not the flat statistics: torch keeps entries of all pools there ever were in them.
        statistics = torch.cuda.memory_stats_as_nested_dict(self.device)
        allocated = statistics.get("allocated_bytes", {}).get("all", {})
        reserved = statistics.get("reserved_bytes", {}).get("all", {})
        return MemoryUse(
            allocated=allocated.get("current", 0),
            peak_allocated=allocated.get("peak", 0),
            reserved=reserved.get("current", 0),
        )

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def trim(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()
