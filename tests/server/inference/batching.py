"""A clock, a device and a model for tests of the batcher: no time passes but by ``advance``."""

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from braid.core.errors import BraidError, WorkerRestarting
from braid.core.inputs import ShapeClass
from braid.core.tensor import TensorType
from braid.server.inference.batching.batcher import Batcher
from braid.server.inference.batching.execution import BatchResult, OnWait
from braid.server.inference.batching.queues import Piece, still_wanted
from braid.server.inference.latencies import LatencyTable
from braid.server.inference.requests import (
    DEFAULT_PRIORITY,
    CheckedRequest,
    InferenceResult,
    OutputTensor,
)
from braid.server.inference.strikes import Strikes
from braid.server.store.serving_config import BatchPolicy

ROW = ShapeClass((("x", TensorType("INT32", (1, 1))),))


@dataclass(order=True, slots=True)
class Alarm:
    when: float
    number: int
    callback: Callable[[], object] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.cancelled = True


class FakeClock:
    """Alarms ring in order while time is advanced; in between, tasks run as far as they can."""

    def __init__(self) -> None:
        self._now = 0.0
        self._alarms: list[Alarm] = []
        self._numbers = count()

    def now(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[[], object]) -> Alarm:
        alarm = Alarm(when, next(self._numbers), callback)
        heapq.heappush(self._alarms, alarm)
        return alarm

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        self.call_at(self._now + seconds, woken.set)
        await woken.wait()

    async def advance(self, seconds: float) -> None:
        end = self._now + seconds
        await settle()
        while self._alarms and self._alarms[0].when <= end:
            alarm = heapq.heappop(self._alarms)
            if not alarm.cancelled:
                self._now = max(self._now, alarm.when)
                alarm.callback()
                await settle()
        self._now = end


async def settle() -> None:
    """Let everything run that can run now."""
    for _ in range(12):
        await asyncio.sleep(0)


class FakeModel:
    """As much of a ModelReplica as the batcher looks at."""

    def __init__(
        self,
        latencies_s: Mapping[int, float],
        policy: BatchPolicy | None = None,
        beside_s: Mapping[int, float] | None = None,
    ) -> None:
        self.name, self.version = "fake", 1
        self.beside_s = beside_s or {}  # of each of two batches side by side
        self.prepare_s = 0.0  # that each batch waits for its executable
        self.batched = True
        self.batch_sizes = tuple(sorted(latencies_s))
        self.policy = policy or BatchPolicy()
        self.strikes = Strikes()
        self.output_axes = {"y": 0}
        self.latencies_s = latencies_s
        self._table = LatencyTable(self.batch_sizes)
        for size, seconds in latencies_s.items():
            self._table.expect(size, seconds)
        for size, seconds in self.beside_s.items():
            self._table.expect(size, seconds, PARTS)

    def lane_of(self, request: CheckedRequest, waiting: int = 0) -> Hashable:
        return request.shape_class

    def latencies(self, lane: Hashable) -> LatencyTable:
        return self._table


@dataclass(frozen=True, slots=True)
class Batch:
    model: FakeModel
    began: float
    size: int
    rows: tuple[int, ...]
    beside: int = 1


PARTS = 2


class FakeExecution:
    """Runs what was sent, in order: one batch on both parts, or two beside each other.

    Each takes what the model says; answers the rows it was given.
    """

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._free = PARTS
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()
        self.batches: list[Batch] = []
        self._running: set[asyncio.Event] = set()
        self._deaths = 0
        self.handover_s = 0.0  # of each batch, beside its computing
        self.is_bad: Callable[[int], bool] = lambda row: False
        self.error: BraidError = BraidError("a row is bad")

    async def run(self, batch: Any, on_wait: OnWait, *, may_explore: bool) -> BatchResult:
        model, size, beside = batch.queue.model, batch.size, batch.beside
        if model.prepare_s:
            on_wait(True)
            await self._clock.sleep(model.prepare_s)
            on_wait(False)
        async with self._part(beside):
            pieces = still_wanted(batch.pieces, self._clock.now())
            given = [_rows(piece) for piece in pieces]
            rows = tuple(row for each in given for row in each)
            if not rows:
                return BatchResult((), size, 0, 0)
            assert len(rows) <= size
            assert size in model.batch_sizes
            assert not any(piece.ticket.is_late(self._clock.now()) for piece in pieces)
            self.batches.append(Batch(model, self._clock.now(), size, rows, beside))
            seconds = model.latencies_s[size] if beside == 1 else model.beside_s[size]
            await self._compute(seconds + self.handover_s)
            if any(map(self.is_bad, rows)):
                raise self.error
            compute_us = round(seconds * 1e6)
            outcomes = [
                (piece, _answer(each, size, len(rows), compute_us))
                for piece, each in zip(pieces, given, strict=True)
            ]
            return BatchResult(outcomes, size, len(rows), compute_us)

    def die(self) -> None:
        """End what runs now as the death of a worker does."""
        self._deaths += 1
        for woken in self._running:
            woken.set()

    async def _compute(self, seconds: float) -> None:
        woken, deaths = asyncio.Event(), self._deaths
        self._clock.call_at(self._clock.now() + seconds, woken.set)
        self._running.add(woken)
        await woken.wait()
        self._running.discard(woken)
        if deaths != self._deaths:
            raise WorkerRestarting("the worker died")

    @asynccontextmanager
    async def _part(self, beside: int) -> AsyncIterator[None]:
        """Wait for the turn, and then for the parts of the device that a batch needs."""
        parts = PARTS // beside
        async with self._turn:
            while self._free < parts:
                self._freed.clear()
                await self._freed.wait()
            self._free -= parts
        try:
            yield
        finally:
            self._free += parts
            self._freed.set()


def _rows(piece: Piece) -> list[int]:
    content = memoryview(bytes(piece.request.inputs["x"])).cast("i").tolist()
    return content[piece.first_row : piece.first_row + piece.rows]


def _answer(rows: Sequence[int], size: int, batch_rows: int, compute_us: int) -> InferenceResult:
    data = b"".join(row.to_bytes(4, "little") for row in rows)
    tensor = OutputTensor("INT32", (len(rows), 1), data)
    return InferenceResult({"y": tensor}, 0, 0, compute_us, size, batch_rows, "fake")


class Watcher:
    def __init__(self) -> None:
        self.waiting = (0, 0)

    def queue_is(self, requests: int, rows: int) -> None:
        self.waiting = (requests, rows)

    def batch_ran(self, batch_size: int, rows: int, compute_us: int) -> None:
        assert 0 < rows <= batch_size


class Bench:
    """A batcher with its fakes. Requests are made of rows that are numbered."""

    def __init__(
        self,
        latencies_s: Mapping[int, float],
        policy: BatchPolicy | None = None,
        beside_s: Mapping[int, float] | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.device = FakeExecution(self.clock)
        self.model = FakeModel(latencies_s, policy, beside_s)
        self.batcher = Batcher(self.device, self.clock)
        self.watcher = Watcher()
        self._next_row = 0

    def send(
        self,
        rows: int = 1,
        *,
        priority: int = DEFAULT_PRIORITY,
        within: float | None = None,
        model: FakeModel | None = None,
        shape_class: ShapeClass = ROW,
    ) -> asyncio.Task[list[int]]:
        """Submit a request; the task brings the rows of its answer."""
        numbers = range(self._next_row, self._next_row + rows)
        self._next_row += rows
        content = b"".join(row.to_bytes(4, "little") for row in numbers)
        request = CheckedRequest(shape_class, rows, {"x": content}, ("y",), priority)
        deadline = None if within is None else self.clock.now() + within
        return asyncio.create_task(self._submit(request, deadline, model or self.model))

    async def _submit(
        self, request: CheckedRequest, deadline: float | None, model: Any
    ) -> list[int]:
        outcome = await self.batcher.submit(model, request, self.watcher, deadline)
        return memoryview(outcome.outputs["y"].data).cast("i").tolist()

    @property
    def sizes(self) -> list[int]:
        """Batch sizes that ran, in order."""
        return [batch.size for batch in self.device.batches]

    @property
    def rows(self) -> list[tuple[int, ...]]:
        return [batch.rows for batch in self.device.batches]
