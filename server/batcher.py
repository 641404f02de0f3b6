"""Forms batches of waiting requests and runs them; every request ends exactly once.

    submit ──> queue of the model ──> batch (same shape class, in order) ──> slot in shared memory
                                                                                │ device runs it
    caller <── its rows, sliced out ──────────────────────────────────────────┘

A request of more rows than the largest batch size becomes several *pieces*. A batch is the
longest run of waiting pieces of one shape class that fits the largest batch size; it runs at the
smallest batch size that holds it. Nobody waits for a batch to fill: while the device is busy,
what arrives collects. Models take turns. A piece whose caller is gone leaves the queue at once.
If a batch fails and carried several requests, each is run again alone, so that a bad one harms
no neighbour.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic, perf_counter_ns
from typing import Protocol

import numpy as np

from core.errors import (
    DeadlineExceeded,
    DeviceOutOfMemory,
    QueueFull,
    Unavailable,
)
from core.tensor import DTYPE_BYTES
from engine.worker.layout import Field
from server.device import Device, Executable
from server.requests import CheckedRequest
from server.served import ServedModel

IN_FLIGHT = 2
"""Batches sent to a device at once: one runs, the next is already there."""


class BatchObserver(Protocol):
    """Is told what the queue does; see ``server.metrics``."""

    def queue_is(self, requests: int, rows: int) -> None:
        """What waits now."""

    def batch_ran(self, batch_size: int, rows: int) -> None:
        """One batch ended well."""


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """One output, for one request."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """A request's result, and how it came about. Times in microseconds."""

    outputs: Mapping[str, OutputTensor]
    queue_us: int
    compute_us: int
    batch_size: int
    batch_rows: int
    plan_id: str


@dataclass(slots=True, eq=False)
class _Piece:
    """Some rows of one request: all of them, or as many as a batch takes."""

    request: CheckedRequest
    first_row: int
    rows: int
    deadline: float | None  # time.monotonic()
    accepted_ns: int
    result: asyncio.Future[Outcome]


class _Queue:
    """What waits for one model, and how much that is."""

    def __init__(self, observer: BatchObserver) -> None:
        self.observer = observer
        self.pieces: deque[_Piece] = deque()
        self.rows = 0
        self.requests = 0  # none of whose rows has been sent yet

    def append(self, piece: _Piece) -> None:
        self.pieces.append(piece)
        self._count(piece, 1)

    def popleft(self) -> _Piece:
        piece = self.pieces.popleft()
        self._count(piece, -1)
        return piece

    def remove(self, piece: _Piece) -> None:
        if piece in self.pieces:
            self.pieces.remove(piece)
            self._count(piece, -1)

    def tell(self) -> None:
        """Report what waits now."""
        self.observer.queue_is(self.requests, self.rows)

    def _count(self, piece: _Piece, sign: int) -> None:
        self.rows += sign * piece.rows
        self.requests += sign * (piece.first_row == 0)


class Batcher:
    """The queue of one device. Belongs to the event loop."""

    def __init__(self, device: Device, max_requests: int, max_rows: int) -> None:
        self._device = device
        self._max_requests = max_requests
        self._max_rows = max_rows
        self._queues: OrderedDict[ServedModel, _Queue] = OrderedDict()
        self._in_flight: set[asyncio.Task[None]] = set()
        self._slot_freed = asyncio.Event()
        self._batch_seconds = 0.01  # smoothed, for retry hints

    async def submit(
        self,
        model: ServedModel,
        request: CheckedRequest,
        observer: BatchObserver,
        deadline: float | None = None,
    ) -> Outcome:
        """Run one request; cancelling the caller takes it out of the queue.

        Args:
            model: what to run.
            request: checked against that model.
            observer: of the model's queue.
            deadline: ``time.monotonic()`` after which nobody wants the result.

        Raises:
            QueueFull: too much waits for this model already.
            DeadlineExceeded: the deadline passed in the queue.
            WorkerRestarting: the worker died, or is not up again yet.
        """
        queue = self._queues.setdefault(model, _Queue(observer))
        self._check_room(queue, request.rows)
        loop = asyncio.get_running_loop()
        now = perf_counter_ns()
        pieces = [
            _Piece(request, first, rows, deadline, now, loop.create_future())
            for first, rows in split_rows(request.rows, model.largest_batch)
        ]
        for piece in pieces:
            queue.append(piece)
        self._pump()
        if queue.pieces:
            queue.tell()
        try:
            if len(pieces) == 1:
                return await pieces[0].result
            return _join(model, request, await asyncio.gather(*(p.result for p in pieces)))
        finally:
            self._abandon(model, pieces)

    def _check_room(self, queue: _Queue, rows: int) -> None:
        if queue.pieces and (
            queue.requests >= self._max_requests or queue.rows + rows > self._max_rows
        ):
            raise QueueFull(
                f"{queue.requests} requests with {queue.rows} rows wait for this model already; "
                "send fewer at once or try again",
                retry_after_s=self._batch_seconds * len(queue.pieces),
            )

    def _abandon(self, model: ServedModel, pieces: Sequence[_Piece]) -> None:
        """After the caller is gone or one piece failed: nothing of it may stay queued."""
        for piece in pieces:
            if not piece.result.done():
                piece.result.cancel()
            elif not piece.result.cancelled():
                piece.result.exception()  # seen
        queue = self._queues.get(model)
        if queue is not None and any(piece.result.cancelled() for piece in pieces):
            for piece in pieces:
                queue.remove(piece)
            queue.tell()

    async def drain(self, model: ServedModel | None = None) -> None:
        """Wait until nothing is queued or running (for ``model``)."""
        while self._in_flight or any(
            queue.pieces for at, queue in self._queues.items() if model in (None, at)
        ):
            running = list(self._in_flight)
            await (asyncio.wait(running) if running else asyncio.sleep(0.001))

    def forget(self, model: ServedModel) -> None:
        """Drop the (empty) queue of a model that is gone."""
        self._queues.pop(model, None)

    # -- forming batches ----------------------------------------------------------------------

    def _pump(self) -> None:
        """Send batches while the device has room and something waits."""
        while len(self._in_flight) < IN_FLIGHT:
            model = next((m for m, queue in self._queues.items() if queue.pieces), None)
            if model is None:
                return
            self._queues.move_to_end(model)  # the others go first next time
            if pieces := self._take(model, self._queues[model]):
                task = asyncio.create_task(self._run(model, pieces))
                self._in_flight.add(task)
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        self._pump()

    def _take(self, model: ServedModel, queue: _Queue) -> list[_Piece]:
        """The next pieces that share a batch; pieces too late for their caller end here."""
        taken: list[_Piece] = []
        rows, now = 0, monotonic()
        while queue.pieces:
            piece = queue.pieces[0]
            if piece.deadline is not None and piece.deadline <= now:
                queue.popleft()
                piece.result.set_exception(
                    DeadlineExceeded("the deadline passed while the request was queued")
                )
                continue
            if taken and (
                not model.batched
                or piece.request.shape_class != taken[0].request.shape_class
                or rows + piece.rows > model.largest_batch
            ):
                break
            taken.append(queue.popleft())
            rows += piece.rows
        queue.tell()
        return taken

    # -- running batches ----------------------------------------------------------------------

    async def _run(self, model: ServedModel, pieces: list[_Piece]) -> None:
        """Run one batch and end all its pieces."""
        try:
            await self._execute(model, pieces)
        except Exception as error:
            if len(pieces) > 1 and not isinstance(error, Unavailable):
                for piece in pieces:
                    await self._run(model, [piece])
                return
            for piece in pieces:
                if not piece.result.done():
                    piece.result.set_exception(error)

    async def _execute(self, model: ServedModel, pieces: Sequence[_Piece]) -> None:
        rows = sum(piece.rows for piece in pieces)
        size = model.batch_size_for(rows)
        ready = await model.executable(pieces[0].request.shape_class, size)
        with model.using(ready):
            offset = await self._allocate(ready)
            try:
                sent_ns = perf_counter_ns()
                _write_rows(self._device.arena.view, offset, ready, pieces)
                compute_us = await self._device.run(ready, offset)
                run = _Run(ready, offset, size if model.batched else 1, rows, sent_ns, compute_us)
                for row, piece in _with_rows(pieces):
                    if not piece.result.done():
                        outcome = _outcome(self._device.arena.view, model, run, piece, row)
                        piece.result.set_result(outcome)
            finally:
                self._device.arena.release(offset)
                self._slot_freed.set()
        seconds = (perf_counter_ns() - sent_ns) / 1e9
        self._batch_seconds += 0.1 * (seconds - self._batch_seconds)
        self._queues[model].observer.batch_ran(run.batch_size, rows)

    async def _allocate(self, ready: Executable) -> int:
        """A slot for one batch; waits while the batches in flight hold the memory."""
        while True:
            offset = self._device.arena.allocate(ready.layout.size_bytes)
            if offset is not None:
                return offset
            self._slot_freed.clear()
            try:
                async with asyncio.timeout(30.0):
                    await self._slot_freed.wait()
            except TimeoutError:
                raise DeviceOutOfMemory(
                    "no shared memory became free for this batch; "
                    "raise BRAID_SHARED_MEMORY_BYTES or send fewer rows",
                    retry_after_s=1.0,
                ) from None


@dataclass(frozen=True, slots=True)
class _Run:
    """One batch that ran."""

    ready: Executable
    offset: int
    batch_size: int
    rows: int
    sent_ns: int
    compute_us: int


def split_rows(rows: int, largest: int) -> list[tuple[int, int]]:
    """Cut a request into (first row, rows) pieces of at most ``largest`` rows."""
    return [(first, min(largest, rows - first)) for first in range(0, rows, largest)]


def _with_rows(pieces: Sequence[_Piece]) -> list[tuple[int, _Piece]]:
    """Each piece with its first row in the batch."""
    first, found = 0, []
    for piece in pieces:
        found.append((first, piece))
        first += piece.rows
    return found


def _write_rows(
    memory: memoryview, offset: int, ready: Executable, pieces: Sequence[_Piece]
) -> None:
    """Copy every piece's rows into the slot; rows of padding are zeroed."""
    for name, place in ready.layout.inputs.items():
        start = offset + place.offset
        end = start + place.spec.size_bytes
        for piece in pieces:
            data: bytes | memoryview = piece.request.inputs[name]
            if piece.rows != piece.request.rows:
                row = len(data) // piece.request.rows
                first = piece.first_row * row
                data = memoryview(data)[first : first + piece.rows * row]
            memory[start : start + len(data)] = data
            start += len(data)
        if start < end:
            memory[start:end] = bytes(end - start)


def _outcome(memory: memoryview, model: ServedModel, run: _Run, piece: _Piece, row: int) -> Outcome:
    """Cut one piece's rows out of the slot."""
    outputs = {
        name: _cut(memory, run, run.ready.layout.outputs[name], axis, row, piece.rows)
        for name, axis in ((n, model.output_axes.get(n)) for n in piece.request.outputs)
    }
    return Outcome(
        outputs,
        queue_us=(run.sent_ns - piece.accepted_ns) // 1000,
        compute_us=run.compute_us,
        batch_size=run.batch_size,
        batch_rows=run.rows,
        plan_id=run.ready.plan_id,
    )


def _cut(
    memory: memoryview, run: _Run, place: Field, axis: int | None, row: int, rows: int
) -> OutputTensor:
    """Rows ``row`` to ``row + rows`` of one output; all of it where it has no batch axis."""
    spec, start = place.spec, run.offset + place.offset
    shape = tuple(dim for dim in spec.shape if isinstance(dim, int))
    whole = memory[start : start + spec.size_bytes]
    if axis is None or rows == shape[axis]:
        return OutputTensor(spec.dtype, shape, bytes(whole))
    each = shape[axis] // run.batch_size  # output rows for one request row, usually 1
    cut = (*shape[:axis], rows * each, *shape[axis + 1 :])
    if axis == 0:
        row_bytes = spec.size_bytes // run.batch_size
        return OutputTensor(
            spec.dtype, cut, bytes(whole[row * row_bytes : (row + rows) * row_bytes])
        )
    element = np.dtype((np.void, DTYPE_BYTES[spec.dtype]))
    array = np.frombuffer(whole, dtype=element).reshape(shape)
    index = (slice(None),) * axis + (slice(row * each, (row + rows) * each),)
    return OutputTensor(spec.dtype, cut, array[index].tobytes())


def _join(model: ServedModel, request: CheckedRequest, parts: Sequence[Outcome]) -> Outcome:
    """Put the pieces of one request together again."""
    largest = max(parts, key=lambda part: part.batch_size)
    return Outcome(
        outputs={
            name: _concatenate([part.outputs[name] for part in parts], model.output_axes.get(name))
            for name in request.outputs
        },
        queue_us=parts[0].queue_us,
        compute_us=sum(part.compute_us for part in parts),
        batch_size=largest.batch_size,
        batch_rows=largest.batch_rows,
        plan_id=largest.plan_id,
    )


def _concatenate(parts: Sequence[OutputTensor], axis: int | None) -> OutputTensor:
    first = parts[0]
    if axis is None:
        return first
    shape = list(first.shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    if axis == 0:
        return OutputTensor(first.dtype, tuple(shape), b"".join(part.data for part in parts))
    element = np.dtype((np.void, DTYPE_BYTES[first.dtype]))
    arrays = [np.frombuffer(part.data, dtype=element).reshape(part.shape) for part in parts]
    return OutputTensor(first.dtype, tuple(shape), np.concatenate(arrays, axis).tobytes())
