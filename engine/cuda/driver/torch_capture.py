"""Captures over torch.cuda, and the pools of memory that graphs are captured into.

    begin ─> gate ──fork──> origin ──> ... ──> origin ──join──> gate ─> end       one capture
    pool ──> home: torch's name for it, and a graph that keeps it alive           where it allocates

Graphs are captured with ``capture_begin`` and ``capture_end`` in mode ``thread_local``, since
``with torch.cuda.graph`` synchronises and empties caches each time. What torch gets wrong:

- From 2.12 to 2.14 resetting any graph gives the cuBLAS workspaces of the stream that its capture
  began on away, though other graphs were captured with their addresses. So captures begin on a
  *gate*, a stream of which no kernel ever runs, and go on from there; this leaves no trace in a
  graph.
- Until 2.11 a capture that CUDA refused leaves both allocators, that of the device and that of
  pinned memory, sending allocations to the pool, and the generator of random numbers counting for
  the graph. The device's allocator is set right here, the generator by the next capture that
  succeeds. The other allocator cannot be: it takes no further capture into the same pool, so the
  pool moves to a new home, and it goes on asking the graph whether an allocation is part of its
  capture, so the graph is kept.
- Such a capture keeps its share in the pool, and so the pool its memory, in 2.13 as well.
"""

import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from braid.engine.cuda.driver.interface import Graph, Pool


@dataclass(slots=True)
class _Home:
    """Memory that torch knows as one pool."""

    name: Any
    anchor: Graph | None = None  # torch refuses a pool that no graph uses but that has blocks
    graphs: int = 0  # beside the anchor
    is_left: bool = False  # it takes no capture any more

    def vacate(self) -> None:
        """Free the memory if it takes no further capture and no graph needs it."""
        if self.is_left and not self.graphs and self.anchor is not None:
            self.anchor.handle.reset()
            self.anchor = None


@dataclass(slots=True)
class _Underway:
    """A capture that begins or has begun."""

    graph: torch.cuda.CUDAGraph
    pool: Pool
    home: _Home
    origin: torch.cuda.Stream
    collect: bool  # whether garbage was collected before it
    has_share: bool = False  # in the pool


class Captures:
    """All captures of one thread on one device."""

    def __init__(self, device: torch.device, use: Callable[[torch.cuda.Stream], None]) -> None:
        """Begin none; ``use`` makes a stream the current one."""
        self._device = device
        self._use = use
        self._gate = torch.cuda.Stream(device)
        self._underway: _Underway | None = None
        self._homes: dict[torch.cuda.CUDAGraph, _Home] = {}  # of all graphs but the anchors
        self._refused: list[torch.cuda.CUDAGraph] = []

    def pool(self, origin: torch.cuda.Stream) -> Pool:
        pool = Pool([])
        self._settle(pool, origin)
        return pool

    def _settle(self, pool: Pool, origin: torch.cuda.Stream) -> None:
        """Give a pool a home for the captures to come."""
        self._use(origin)
        torch.zeros(1, device=self._device)  # loaded before it is captured
        home = _Home(torch.cuda.graph_pool_handle())
        try:
            self._begin(origin, pool, home)
            torch.zeros(1, device=self._device)
            home.anchor = self._end()
        except BaseException:
            self._drop([origin])
            raise
        pool.handle.append(home)

    def release(self, pool: Pool) -> None:
        """Give a pool's memory back to the device: torch keeps it otherwise."""
        for home in pool.handle:
            home.is_left = True
            home.vacate()
        pool.handle.clear()
        torch.cuda.empty_cache()

    def begin(self, origin: torch.cuda.Stream, pool: Pool) -> None:
        """Begin; no garbage is collected meanwhile, which is slow and may free what CUDA minds."""
        assert self._underway is None, "one capture at a time"
        if pool.handle[-1].is_left:
            self._settle(pool, origin)
        self._begin(origin, pool, pool.handle[-1])

    def _begin(self, origin: torch.cuda.Stream, pool: Pool, home: _Home) -> None:
        self._use(self._gate)
        graph = torch.cuda.CUDAGraph()
        self._underway = _Underway(graph, pool, home, origin, gc.isenabled())
        gc.disable()
        graph.capture_begin(pool=home.name, capture_error_mode="thread_local")
        self._underway.has_share = True
        _order(self._gate, origin)
        self._use(origin)

    def end(self) -> Graph:
        assert self._underway is not None, "no capture is under way"
        home = self._underway.home
        graph = self._end()
        self._homes[graph.handle] = home
        home.graphs += 1
        return graph

    def destroy(self, graph: Graph) -> None:
        graph.handle.reset()
        home = self._homes.pop(graph.handle)
        home.graphs -= 1
        home.vacate()

    def _end(self) -> Graph:
        capture = self._underway
        assert capture is not None
        _order(capture.origin, self._gate)
        self._use(self._gate)
        capture.graph.capture_end()
        self._leave(capture)
        return Graph(capture.graph)

    def abort(self, joined: Sequence[torch.cuda.Stream]) -> None:
        failed = self._underway
        if failed is not None and self._drop(joined):
            with suppress(RuntimeError):  # else with the next capture
                self._settle(failed.pool, failed.origin)

    def _drop(self, joined: Sequence[torch.cuda.Stream]) -> bool:
        """End the capture and free its graph; loose streams are joined first, else CUDA refuses."""
        failed = self._underway
        assert failed is not None, "no capture is under way"
        for stream in joined:
            with suppress(RuntimeError):
                self._use(stream)
                if torch.cuda.is_current_stream_capturing():
                    _order(stream, self._gate)
        try:
            self._use(self._gate)
            failed.graph.capture_end()
        except RuntimeError:
            failed.home.is_left = True
            failed.home.vacate()
        reset_releases = _has_ended_well(failed.graph)
        with suppress(RuntimeError):
            failed.graph.reset()
        if failed.home.is_left:
            self._refused.append(failed.graph)
            with suppress(RuntimeError):  # from 2.12 on torch has done so itself
                torch._C._cuda_endAllocateToPool(self._device.index, failed.home.name)
            if failed.has_share and not reset_releases:
                torch._C._cuda_releasePool(self._device.index, failed.home.name)
        self._leave(failed)
        return failed.home.is_left

    def _leave(self, capture: _Underway) -> None:
        self._underway = None
        if capture.collect:
            gc.enable()


def _has_ended_well(graph: torch.cuda.CUDAGraph) -> bool:
    """Whether ``reset`` gives up the graph's share in its pool, in torch's own opinion."""
    try:
        graph.pool()
    except RuntimeError:
        return False
    return True


def _order(first: torch.cuda.Stream, then: torch.cuda.Stream) -> None:
    event = torch.cuda.Event()
    event.record(first)
    event.wait(then)
