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
from collections.abc import Sequence
from time import monotonic, perf_counter_ns
from typing import Protocol

from core.errors import (
    DeadlineExceeded,
    DeviceOutOfMemory,
    QueueFull,
    Unavailable,
)
from server.device import Device, Executable
from server.requests import CheckedRequest
from server.rows import (
    BatchRun,
    Outcome,
    Piece,
    join,
    outcome_of,
    split_rows,
    with_rows,
    write_rows,
)
from server.served import ServedModel

IN_FLIGHT = 2
"""Batches sent to a device at once: one runs, the next is already there."""


class BatchObserver(Protocol):
    """Is told what the queue does; see ``server.metrics``."""

    def queue_is(self, requests: int, rows: int) -> None:
        """What waits now."""

    def batch_ran(self, batch_size: int, rows: int, compute_us: int) -> None:
        """One batch ended well."""


class _Queue:
    """What waits for one model, and how much that is."""

    def __init__(self, observer: BatchObserver) -> None:
        self.observer = observer
        self.pieces: deque[Piece] = deque()
        self.rows = 0
        self.requests = 0  # none of whose rows has been sent yet

    def append(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self._count(piece, 1)

    def popleft(self) -> Piece:
        piece = self.pieces.popleft()
        self._count(piece, -1)
        return piece

    def remove(self, piece: Piece) -> None:
        if piece in self.pieces:
            self.pieces.remove(piece)
            self._count(piece, -1)

    def tell(self) -> None:
        """Report what waits now."""
        self.observer.queue_is(self.requests, self.rows)

    def _count(self, piece: Piece, sign: int) -> None:
        self.rows += sign * piece.rows
        self.requests += sign * (piece.first_row == 0)


class Batcher:
    """The queue of one device. Belongs to the event loop."""

    def __init__(self, device: Device, max_requests: int, max_rows: int) -> None:
        self._device = device
        self._max_requests = max_requests
        self._max_rows = max_rows
        self._queues: OrderedDict[ServedModel, _Queue] = OrderedDict()
        self._in_flight: dict[asyncio.Task[None], ServedModel] = {}
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
            Piece(request, first, rows, deadline, now, loop.create_future())
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
            return join(model, request, await asyncio.gather(*(p.result for p in pieces)))
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

    def _abandon(self, model: ServedModel, pieces: Sequence[Piece]) -> None:
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
        while True:
            running = [task for task, at in self._in_flight.items() if model in (None, at)]
            queued = any(q.pieces for at, q in self._queues.items() if model in (None, at))
            if running:
                await asyncio.wait(running)
            elif queued:
                await asyncio.sleep(0.001)  # other models have the device now
            else:
                return

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
                self._in_flight[task] = model
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._in_flight[task]
        self._pump()

    def _take(self, model: ServedModel, queue: _Queue) -> list[Piece]:
        """The next pieces that share a batch; pieces too late for their caller end here."""
        taken: list[Piece] = []
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

    async def _run(self, model: ServedModel, pieces: list[Piece]) -> None:
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

    async def _execute(self, model: ServedModel, pieces: Sequence[Piece]) -> None:
        rows = sum(piece.rows for piece in pieces)
        size = model.batch_size_for(rows)
        ready = await model.executable(pieces[0].request.shape_class, size)
        with model.using(ready):
            offset = await self._allocate(ready)
            try:
                sent_ns = perf_counter_ns()
                write_rows(self._device.arena.view, offset, ready, pieces)
                compute_us = await self._device.run(ready, offset)
                run = BatchRun(
                    ready, offset, size if model.batched else 1, rows, sent_ns, compute_us
                )
                for row, piece in with_rows(pieces):
                    if not piece.result.done():
                        outcome = outcome_of(self._device.arena.view, model, run, piece, row)
                        piece.result.set_result(outcome)
            finally:
                self._device.arena.release(offset)
                self._slot_freed.set()
        seconds = (perf_counter_ns() - sent_ns) / 1e9
        self._batch_seconds += 0.1 * (seconds - self._batch_seconds)
        self._queues[model].observer.batch_ran(run.batch_size, rows, compute_us)

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
