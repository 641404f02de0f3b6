"""One batch on a device: a slot of shared memory, rows in, the run, rows out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic, perf_counter_ns

from braid.core.errors import DeviceOutOfMemory
from braid.server.devices.device import Device, Executable
from braid.server.devices.measuring.duty_cycle import Turns
from braid.server.inference.batching.tickets import Piece, still_wanted, when_all_ended
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import InferenceResult
from braid.server.inference.slot_rows import BatchRun, outcome_of, with_rows, write_rows

SLOT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Ran:
    """What a batch led to."""

    outcomes: Sequence[tuple[Piece, InferenceResult]]  # of pieces still waited for
    batch_size: int
    rows: int
    compute_us: int


class DeviceExecution:
    """Runs batches on one device. Belongs to the event loop."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._turns = Turns(lambda: device.bench.is_measuring)
        self._slot_freed = asyncio.Event()

    async def run(self, model: ModelReplica, pieces: Sequence[Piece], size: int) -> Ran:
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
                await self._turns.before_run()
                try:
                    return await self._run(model, ready, offset, pieces, size)
                finally:
                    self._turns.after_run()
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
    ) -> Ran:
        sent_ns = perf_counter_ns()
        pieces = still_wanted(pieces, monotonic())
        rows = sum(piece.rows for piece in pieces)
        if not rows:
            return Ran((), size, 0, 0)
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
        return Ran(outcomes, batch_size, rows, compute_us)

    async def _allocate(self, ready: Executable) -> int:
        """A slot for one batch; waits while the batches in flight hold the memory."""
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
