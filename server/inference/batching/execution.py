"""Run of one batch on a device, and the ends of the batch's requests.

BatchRunner.run ──> Execution.run: a slot of shared memory, rows in, the run, rows out
     └──> results to the requests; if the batch failed, each of its requests runs again alone,
          so that a bad one harms no other
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic, perf_counter_ns
from typing import Protocol

from braid.core.errors import DeviceOutOfMemory, ModelQuarantined, RunTooLong, Unavailable
from braid.server.devices.device import Device
from braid.server.devices.executables import Executable
from braid.server.devices.measuring.duty_cycle import DutyCycle
from braid.server.inference.batching.admission import Quarantine
from braid.server.inference.batching.queues import Lane, ModelQueue
from braid.server.inference.batching.tickets import Piece, still_wanted, when_all_ended
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import InferenceResult
from braid.server.inference.slot_rows import BatchRun, join, outcome_of, with_rows, write_rows

log = logging.getLogger("braid.batching")

SLOT_SECONDS = 30.0

HANDOVER_S, LONGEST_HANDOVER_S = 0.001, 0.01
"""Cost of a batch beside the computing, in seconds: a first guess, and the most assumed."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Results of a batch's pieces, and the device's time for the batch in microseconds."""

    outcomes: Sequence[tuple[Piece, InferenceResult]]  # of pieces still waited for
    batch_size: int
    rows: int
    compute_us: int


class Execution(Protocol):
    """Runs batches: ``DeviceExecution``, or a fake in tests."""

    async def run(self, model: ModelReplica, pieces: Sequence[Piece], size: int) -> BatchResult:
        """Run pieces of one shape class as a batch of ``size`` rows."""


class DeviceExecution:
    """Runs batches on one device. Belongs to the event loop."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._duty_cycle = DutyCycle(lambda: device.bench.host.is_measuring)
        self._slot_freed = asyncio.Event()

    async def run(self, model: ModelReplica, pieces: Sequence[Piece], size: int) -> BatchResult:
        """Run pieces of one shape class as a batch of ``size`` rows.

        What ended before the device was asked is left out; if that is all, nothing runs.
        Deadlines are by ``time.monotonic``.

        Raises:
            BraidError: the whole batch failed.
        """
        ready = await model.executable(pieces[0].request.shape_class, size)
        with model.using(ready):
            offset = await self._allocate(ready)
            try:
                await self._duty_cycle.before_run()
                try:
                    return await self._run(model, ready, offset, pieces, size)
                finally:
                    self._duty_cycle.after_run()
            finally:
                self._device.arena.release(offset)
                self._slot_freed.set()

    async def _run(
        self,
        model: ModelReplica,
        ready: Executable,
        offset: int,
        pieces: Sequence[Piece],
        size: int,
    ) -> BatchResult:
        sent_ns = perf_counter_ns()
        pieces = still_wanted(pieces, monotonic())
        rows = sum(piece.rows for piece in pieces)
        if not rows:
            return BatchResult((), size, 0, 0)
        memory = self._device.arena.view
        write_rows(memory, offset, ready, pieces)
        compute_us = await self._device.run(ready, offset, partial(when_all_ended, pieces))
        ended_ns = perf_counter_ns()
        batch_size = size if model.batched else 1
        run = BatchRun(ready, offset, batch_size, rows, sent_ns, ended_ns, compute_us)
        outcomes = [
            (piece, outcome_of(memory, model, run, piece, row))
            for row, piece in with_rows(pieces)
            if not piece.ticket.has_ended
        ]
        return BatchResult(outcomes, batch_size, rows, compute_us)

    async def _allocate(self, ready: Executable) -> int:
        """Return the offset of a slot; waits while the batches in flight hold the memory."""
        while True:
            offset = self._device.arena.allocate(ready.layout.size_bytes)
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


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Pieces of one shape class that are sent to the device together."""

    queue: ModelQueue
    lane: Lane
    pieces: Sequence[Piece]
    size: int
    expected_s: float
    was_idle: bool  # the device had nothing else to do


class BatchRunner:
    """Runs the batches of one device, and ends their pieces. Belongs to the event loop."""

    def __init__(
        self, execution: Execution, now: Callable[[], float], quarantine: Quarantine
    ) -> None:
        """Take the time, in seconds, from ``now``."""
        self.handover_s = HANDOVER_S  # of a batch, beside the computing
        self._execution = execution
        self._now = now
        self._quarantine = quarantine

    async def run(self, batch: Batch) -> bool:
        """Run one batch and end all its pieces; returns bool: that was a strike."""
        began, model = self._now(), batch.queue.model
        try:
            self._quarantine.check(model.name, model.version)  # it may have waited for long
            ran = await self._execution.run(model, batch.pieces, batch.size)
        except Exception as error:
            self._charge(batch, self._now() - began)
            return await self._failed(batch, error)
        spent_s = self._now() - began
        for piece, outcome in ran.outcomes:
            self._deliver(model, piece, outcome)
        await asyncio.sleep(0)  # the answers go out first
        if ran.rows:
            batch.queue.observer.batch_ran(ran.batch_size, ran.rows, ran.compute_us)
            self._learn(batch, ran.compute_us / 1e6, spent_s)
        return False

    async def _failed(self, batch: Batch, error: Exception) -> bool:
        """End the pieces of a batch that failed; returns bool: that was a strike.

        One request that never ends is one strike: of a batch that took too long, only the pieces
        that do so alone count, or the batch itself if none does.
        """
        was_strike = False
        if len(batch.pieces) > 1 and not isinstance(error, Unavailable | ModelQuarantined):
            was_strike = await self._run_each_alone(batch)
        else:
            for piece in batch.pieces:
                piece.ticket.fail(error)
        if isinstance(error, RunTooLong) and not was_strike:
            self._strike(batch.queue.model)
            return True
        return was_strike

    def _charge(self, batch: Batch, spent_s: float) -> None:
        """Charge a failed batch with the seconds that it took beyond the expected ones.

        Else a model whose runs are ended would get more of the device than its share.
        """
        more_s = max(0.0, spent_s - batch.expected_s)
        batch.queue.used_s += more_s / batch.queue.model.policy.share

    def _strike(self, model: ModelReplica) -> None:
        if self._quarantine.strike(model.name, model.version):
            facts = {"model": model.name, "version": model.version}
            log.error("a model is refused for a while: it held its device up", extra=facts)

    async def _run_each_alone(self, batch: Batch) -> bool:
        """Run each piece alone, as one of them is bad; returns bool: one was a strike."""
        was_strike = False
        for piece in batch.pieces:
            if not piece.ticket.has_ended:
                size = batch.lane.table.size_for(piece.rows)
                was_strike |= await self.run(replace(batch, pieces=[piece], size=size))
        return was_strike

    def _deliver(self, model: ModelReplica, piece: Piece, outcome: InferenceResult) -> None:
        """Give a piece's rows to its request, and end a request whose rows are all computed."""
        ticket = piece.ticket
        if ticket.has_ended:
            return
        if parts := ticket.deliver(piece, outcome):
            whole = parts[0] if len(parts) == 1 else join(model, ticket.request, parts)
            ticket.result.set_result(whole)

    def _learn(self, batch: Batch, compute_s: float, spent_s: float) -> None:
        """Correct the estimates that the batch was sent with."""
        batch.lane.table.observe(batch.size, max(1e-6, compute_s))
        batch.queue.used_s += (compute_s - batch.expected_s) / batch.queue.model.policy.share
        if batch.was_idle:
            handover_s = min(max(0.0, spent_s - compute_s), LONGEST_HANDOVER_S)
            self.handover_s += 0.1 * (handover_s - self.handover_s)
