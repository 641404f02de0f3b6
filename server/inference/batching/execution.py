"""Run of one batch on a device: a slot of shared memory, rows in, the run, rows out."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic, perf_counter_ns
from typing import Any, Protocol

from braid.core.errors import (
    BraidError,
    DeviceOutOfMemory,
    PreconditionFailed,
    WorkerDied,
    WorkerFault,
)
from braid.core.inputs import ShapeClass
from braid.core.pieces import in_steps
from braid.server.devices.device import Device
from braid.server.devices.duty_cycle import DutyCycle
from braid.server.devices.executables import Executable
from braid.server.inference.batching.queues import Batch, Piece, still_wanted, when_all_ended
from braid.server.inference.plan_contest import PlanContest
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import InferenceResult
from braid.server.inference.slot_heap import SlotHeap
from braid.server.inference.slot_rows import BatchRun, draft_of, outcome_of, slot_bytes, write_rows

SLOT_SECONDS = 30.0

HEAP_MARGIN = 4
"""A heap that was too small grows by what was lacking, and by this part of it."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Results of a batch's pieces, and the device's time for the batch in microseconds."""

    outcomes: Sequence[tuple[Piece, InferenceResult]]  # of pieces still waited for
    batch_size: int
    rows: int
    compute_us: int


Running = Coroutine[Any, Any, BatchResult]
"""Batch under way, which brings its result."""


OnWait = Callable[[bool], object]
"""Receives whether a batch waits for its executable: the device is free for others meanwhile."""


class Execution(Protocol):
    """Runs batches: ``DeviceExecution``, or a fake in tests."""

    def run(self, batch: Batch, on_wait: OnWait, *, may_explore: bool) -> Running:
        """Run a batch; with ``may_explore``, by a plan that is not known to be the best, too."""


def _joined(batch: Batch) -> ShapeClass:
    """Return the class that pieces of one lane run in: its own, or that of their longest."""
    model, pieces = batch.queue.model, batch.pieces
    if model.lengths.axis is None:
        return pieces[0].request.shape_class
    if isinstance(lane := pieces[0].ticket.lane, ShapeClass):
        return lane
    return model.lengths.joined({piece.request.shape_class for piece in pieces})


def _slack_us(pieces: Sequence[Piece]) -> float | None:
    """Time until the earliest deadline of pieces; None: none has one."""
    deadlines = [at for piece in pieces if (at := piece.ticket.deadline) is not None]
    return (min(deadlines) - monotonic()) * 1e6 if deadlines else None


_BY_PLAN = PreconditionFailed | WorkerFault | DeviceOutOfMemory | WorkerDied
"""Errors of a run that may have failed for its plan, so that another one may do it."""


class DeviceExecution:
    """Runs batches on one device. Belongs to the event loop."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._duty_cycle = DutyCycle(device.bench)
        self._slot_freed = asyncio.Event()

    def run(self, batch: Batch, on_wait: OnWait, *, may_explore: bool) -> Running:
        """Run a batch, as ``Execution`` says.

        The device is asked before this returns if nothing has to be waited for: then no task and no
        turn of the event loop lies between a request and its run. What ended before is left out; if
        that is all, nothing runs. Deadlines are by ``time.monotonic``. Raises BraidError: (now, or
        by what is returned) the whole batch failed.
        """
        model, pieces, shape_class = batch.queue.model, batch.pieces, _joined(batch)
        ready, contest = model.ready_and_contest(shape_class, batch.size, batch.beside)
        if ready is None:
            return self._wait_and_run(batch, on_wait)
        offset = self._device.arena.allocate(slot_bytes(ready, pieces))
        if offset is None:
            return self._wait_and_run(batch, on_wait)
        if contest is not None:
            ready = contest.next(may_explore=may_explore, slack_us=_slack_us(pieces))
        model.begin_use(ready)
        if not self._duty_cycle.begin_now():
            self._free(model, ready, offset)
            return self._wait_and_run(batch, on_wait)
        sent = self._send(batch, ready, contest, offset, shape_class)
        return self._finish(batch, sent, on_wait)

    async def _wait_and_run(
        self, batch: Batch, on_wait: OnWait, *, of_class: bool = False
    ) -> BatchResult:
        """Wait for the executable, for a slot and for a pause to end; then run.

        With ``of_class``, the executable of the shape class, and not one for any shape.
        """
        model, beside = batch.queue.model, batch.beside
        began_ns, wanted = perf_counter_ns(), (_joined(batch), batch.size)
        is_new = of_class or model.ready(*wanted, beside) is None
        if is_new:
            on_wait(True)
        try:
            if of_class:
                ready = await model.other_shapes.own(wanted)
            else:
                ready = await model.executable(*wanted, beside)
        finally:
            if is_new:
                on_wait(False)
        prepare_ns = perf_counter_ns() - began_ns if is_new else 0
        model.begin_use(ready)
        offset = None
        try:
            offset = await self._allocate(slot_bytes(ready, batch.pieces))
            await self._duty_cycle.before_run()
        except BaseException:
            self._free(model, ready, offset)
            raise
        contest = model.contest_of(*wanted)
        sent = self._send(batch, ready, contest, offset, wanted[0], prepare_ns)
        return await self._finish(batch, sent, on_wait)

    async def _finish(self, batch: Batch, sent: BatchRun, on_wait: OnWait) -> BatchResult:
        """Bring the results of a batch; it runs again if its outputs need a larger heap.

        How large they are is known only when they are computed, if that follows the content. It
        also runs again, as its shape class would have alone, if what is for any shape refuses it.
        """
        model = sent.model

        def again(*, of_class: bool = False) -> Coroutine[Any, Any, BatchResult]:
            alone = replace(batch, pieces=sent.pieces, beside=1)
            return self._wait_and_run(alone, on_wait, of_class=of_class)

        try:
            result = await self._ended(sent)
        except BraidError as error:
            is_death = isinstance(error, WorkerDied)
            contest = model.contest_of(sent.shape_class, sent.size)  # a new one may be in force
            if sent.ready.to_run.any_shape and isinstance(error, PreconditionFailed):
                result = await again(of_class=True)
                model.other_shapes.refuse((sent.shape_class, sent.size), error)
            elif (
                not isinstance(error, _BY_PLAN)
                or contest is None
                or not contest.failed(sent.ready, is_death=is_death)
                or is_death
            ):
                raise
            else:
                result = await again()
        return result or await again()

    def _send(
        self,
        batch: Batch,
        ready: Executable,
        contest: PlanContest | None,
        offset: int,
        shape_class: ShapeClass,
        prepare_ns: int = 0,
    ) -> BatchRun:
        """Write the rows into the slot and ask the device; frees the slot if that fails."""
        model, size, sent_ns = batch.queue.model, batch.size, perf_counter_ns()
        try:
            pieces = still_wanted(batch.pieces, monotonic())
            sent = BatchRun(model, ready, offset, pieces, size, sent_ns, prepare_ns, shape_class)
            if pieces:
                memory, padded = self._device.arena.view, model.lengths.axis
                is_finite = write_rows(memory, offset, ready, pieces, padded)
                if contest is not None and contest.wants_inputs:
                    contest.inputs = bytes(memory[offset : offset + ready.layout.size_bytes])
                unwanted = partial(when_all_ended, pieces)
                sent.answer = self._device.run(ready, offset, unwanted, is_finite=is_finite)
        except BaseException:
            self._duty_cycle.after_run()
            self._free(model, ready, offset)
            raise
        return sent

    async def _ended(self, run: BatchRun) -> BatchResult | None:
        """Wait for the device's answer, cut the rows out of the slot, and free it.

        What can be prepared of the outcomes is, while the device computes. Returns None if the
        outputs had no room in the slot's heap; the next one will be large enough.
        """
        try:
            if run.answer is None:
                return BatchResult((), run.size, 0, 0)
            model, ready, memory = run.model, run.ready, self._device.arena.view
            drafts = []
            try:
                for piece in run.pieces:
                    drafts.append(draft_of(memory, run, piece, run.rows))
                    run.rows += piece.rows
            finally:
                compute_us = (await run.answer).compute_us  # the slot is in use until then
            ended_ns = perf_counter_ns()
            if ready.layout.has_heap:
                heap = SlotHeap(memory, ready, run.offset)
                if lacking_bytes := heap.lacking_bytes:
                    ready.heap_bytes += lacking_bytes + lacking_bytes // HEAP_MARGIN
                    return None
            model.ran(run.shape_class, run.size, ready, compute_us / 1e6)
            if model.lengths.axis and not run.shape_class.is_alone:
                for piece in run.pieces:
                    model.lengths.ran(piece.request, piece.rows, run.shape_class)
            outcomes = []
            for draft in drafts:
                if not draft.piece.ticket.result.done():
                    cut = outcome_of(memory, run, draft, compute_us, ended_ns)
                    outcomes.append((draft.piece, await in_steps(cut)))
            return BatchResult(outcomes, run.size, run.rows, compute_us)
        finally:
            self._duty_cycle.after_run()
            self._free(run.model, run.ready, run.offset)

    def _free(self, model: ModelReplica, ready: Executable, offset: int | None) -> None:
        if offset is not None:
            self._device.arena.release(offset)
            self._slot_freed.set()
        model.end_use(ready)

    async def _allocate(self, size_bytes: int) -> int:
        """Return the offset of a slot; waits while the batches in flight hold the memory."""
        while True:
            offset = self._device.arena.allocate(size_bytes)
            if offset is not None:
                return offset
            self._slot_freed.clear()
            try:
                async with asyncio.timeout(SLOT_SECONDS):
                    await self._slot_freed.wait()
            except TimeoutError:
                raise DeviceOutOfMemory(
                    "no shared memory became free for this batch; "
                    "raise BRAID_SHARED_MEMORY_BYTES or send fewer rows",
                    retry_after_s=1.0,
                ) from None
