"""One simulated server: the real batcher, whose device sleeps for what a batch takes.

ask ──> Batcher (server/inference/batching) ──> SleepingDevice ──> answer
 └── killed meanwhile: NodeDied
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from benchmarks.fleet.simulate.virtual_time import LoopClock
from braid.core.inputs import ShapeClass
from braid.core.tensor import TensorType
from braid.server.inference.batching.batcher import Batcher
from braid.server.inference.batching.execution import BatchResult
from braid.server.inference.batching.queues import Piece, still_wanted
from braid.server.inference.latencies import LatencyTable
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import CheckedRequest, InferenceResult
from braid.server.store.serving_config import BatchPolicy

_CLASS = ShapeClass((("x", TensorType("FP32", (1, 1))),))


class NodeDied(Exception):
    """The node was killed while it had the request."""


@dataclass(frozen=True, slots=True)
class Device:
    """Latencies of batches on one device, by their size in rows."""

    batch_us: Mapping[int, float]
    slowness: float = 1.0  # factor on all latencies
    noise: Callable[[], float] = lambda: 1.0  # factor on the latency of one batch

    def expected_s(self, size: int) -> float:
        return self.batch_us[size] * self.slowness / 1e6

    @property
    def rows_per_s(self) -> float:
        return max(size / self.expected_s(size) for size in self.batch_us)


class SimulatedModel:
    """As much of a ``ModelReplica`` as the batcher looks at."""

    name, version, batched = "simulated", 1, True

    def __init__(self, device: Device, policy: BatchPolicy) -> None:
        """Expect of each batch size what the device takes for it."""
        self.batch_sizes = tuple(sorted(device.batch_us))
        self.policy = policy
        self._table = LatencyTable(self.batch_sizes)
        for size in self.batch_sizes:
            self._table.expect(size, device.expected_s(size))

    def lane_of(self, request: CheckedRequest) -> Hashable:
        return request.shape_class

    def latencies(self, lane: Hashable) -> LatencyTable:
        return self._table


class SleepingDevice:
    """Execution of batches one after the other, in the order in which they were sent."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._turn = asyncio.Lock()
        self.busy_s = 0.0
        self.batches = self.rows = 0
        self.is_off = False  # counts nothing any more

    async def run(
        self, model: ModelReplica, pieces: Sequence[Piece], size: int, beside: int = 1
    ) -> BatchResult:
        """Sleep for the latency of a batch of ``size`` rows."""
        async with self._turn:
            pieces = still_wanted(pieces, asyncio.get_running_loop().time())
            rows = sum(piece.rows for piece in pieces)
            if not rows:
                return BatchResult((), size, 0, 0)
            seconds = self._device.expected_s(size) * self._device.noise()
            await asyncio.sleep(seconds)
            if not self.is_off:
                self.busy_s += seconds
                self.batches += 1
                self.rows += rows
            compute_us = max(1, round(seconds * 1e6))
            answer = InferenceResult({}, 0, 0, compute_us, size, rows, "simulated")
            return BatchResult([(piece, answer) for piece in pieces], size, rows, compute_us)


class _Unwatched:
    """Observer that records nothing."""

    def queue_is(self, requests: int, rows: int) -> None: ...

    def batch_ran(self, batch_size: int, rows: int, compute_us: int) -> None: ...


@dataclass(slots=True)
class _Life:
    """What a node has from one start to its end."""

    model: ModelReplica
    batcher: Batcher
    execution: SleepingDevice
    open: set[asyncio.Task[Any]] = field(default_factory=set)
    is_over: bool = False


class Node:
    """Simulated server with one device and one model."""

    def __init__(self, number: int, device: Device, policy: BatchPolicy | None = None) -> None:
        self.number, self.device = number, device
        self.is_up = True
        self.is_leaving = False  # gets nothing new, finishes what it has
        self.latencies_s: list[float] = []  # of counted answers
        self._policy = policy or BatchPolicy()
        self._lives: list[_Life] = []
        self._begin()

    def _begin(self) -> None:
        execution = SleepingDevice(self.device)
        model = cast(ModelReplica, SimulatedModel(self.device, self._policy))
        self._lives.append(_Life(model, Batcher(execution, LoopClock()), execution))

    async def ask(self, rows: int = 1, deadline: float | None = None) -> None:
        """Run one request to its end.

        Raises:
            BraidError: the batcher refused it, or its deadline passed.
            NodeDied: the node was killed meanwhile.
        """
        life, task = self._lives[-1], asyncio.current_task()
        assert task is not None
        life.open.add(task)
        try:
            request = _request(rows)
            await life.batcher.submit(life.model, request, _Unwatched(), deadline)
        except asyncio.CancelledError:
            if not life.is_over:
                raise
            task.uncancel()
            raise NodeDied(f"node {self.number} was killed") from None
        finally:
            life.open.discard(task)

    def expected_s(self) -> float:
        life = self._lives[-1]
        return life.batcher.expected_s(life.model, _request(1))

    def backlog_s(self) -> float:
        return self._lives[-1].batcher.backlog_s()

    @property
    def takes_requests(self) -> bool:
        return self.is_up and not self.is_leaving

    @property
    def open(self) -> int:
        return len(self._lives[-1].open)

    @property
    def busy_s(self) -> float:
        return sum(life.execution.busy_s for life in self._lives)

    @property
    def mean_rows(self) -> float:
        batches = sum(life.execution.batches for life in self._lives)
        return sum(life.execution.rows for life in self._lives) / max(1, batches)

    def kill(self) -> None:
        life = self._lives[-1]
        self.is_up, life.is_over, life.execution.is_off = False, True, True
        for task in life.open:
            task.cancel()

    def come_back(self) -> None:
        """Start again, with empty queues and the latencies of the schedules."""
        assert not self.is_up
        self._begin()
        self.is_up = True


def _request(rows: int) -> CheckedRequest:
    return CheckedRequest(_CLASS, rows, {}, ("y",))
