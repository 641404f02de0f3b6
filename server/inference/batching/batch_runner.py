"""Ends of the requests of one batch."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from braid.core.errors import ModelQuarantined, RunTooLong, Unavailable, WorkerDied
from braid.core.pieces import in_steps
from braid.server.inference.batching.execution import BatchResult, Execution, Running
from braid.server.inference.batching.queues import Batch
from braid.server.inference.replica import ModelReplica
from braid.server.inference.slot_rows import join

log = logging.getLogger("braid.batching")

HANDOVER_S, LONGEST_HANDOVER_S = 0.001, 0.01
"""Cost of a batch beside the computing, in seconds: a first guess, and the most assumed."""


class BatchRunner:
    """Runs the batches of one device, and ends their pieces. Belongs to the event loop."""

    def __init__(
        self,
        execution: Execution,
        now: Callable[[], float],
        on_wait: Callable[[Batch, bool], object],
    ) -> None:
        """``on_wait`` receives whether a batch waits for its executable."""
        self.handover_s = HANDOVER_S  # of a batch, beside the computing
        self._early_s = 0.0  # that batches end before they are expected to, on average
        self._execution = execution
        self._now = now
        self._on_wait = on_wait

    @property
    def lead_s(self) -> float:
        """Seconds before a batch is expected to end in which the next one is sent."""
        return 2 * (self.handover_s + self._early_s)

    def run(self, batch: Batch) -> Coroutine[Any, Any, bool]:
        """Run one batch and end all its pieces; returns whether that was a strike.

        The batch is with the device when this returns, if nothing has to be waited for.
        """
        model = batch.queue.model
        try:
            model.strikes.check(model.name, model.version)  # it may have waited for long
            may_explore = 2 * batch.queue.requests < model.policy.max_requests
            waits = partial(self._waits, batch)
            running = self._execution.run(batch, waits, may_explore=may_explore)
        except Exception as error:
            return self._failed(batch, error)
        return self._finish(batch, running)

    def _waits(self, batch: Batch, is_waiting: bool) -> None:
        batch.has_waited = True
        self._on_wait(batch, is_waiting)

    async def _finish(self, batch: Batch, running: Running) -> bool:
        try:
            ran = await running
        except Exception as error:
            self._charge(batch, self._now() - batch.sent_at)
            return await self._failed(batch, error)
        spent_s = self._now() - batch.sent_at
        for piece, outcome in ran.outcomes:
            ticket = piece.ticket
            if piece.rows == piece.request.rows:
                ticket.succeed(outcome)
            elif (parts := ticket.deliver(piece, outcome)) and not ticket.has_ended:
                join_all = join(batch.queue.model, piece.request, parts)
                ticket.succeed(await in_steps(join_all))
        await asyncio.sleep(0)  # answers go out, and what came is read: larger batches
        if ran.rows:
            self._learn(batch, ran, spent_s)
        return False

    async def _failed(self, batch: Batch, error: Exception) -> bool:
        """End the pieces of a batch that failed; returns True if that was a strike.

        One request that never ends is one strike: of a batch that took too long, only the pieces
        that do so alone count, or the batch itself if none does.
        """
        was_strike = False
        if len(batch.pieces) > 1 and not isinstance(error, Unavailable | ModelQuarantined):
            was_strike = await self._run_each_alone(batch)
        else:
            for piece in batch.pieces:
                piece.ticket.fail(error)
        # Of several side by side, nothing tells which one ended the worker.
        is_crash = isinstance(error, WorkerDied) and error.is_of_run and batch.beside == 1
        if is_crash or (isinstance(error, RunTooLong) and not was_strike):
            self._strike(batch.queue.model)
            return True
        return was_strike

    def _charge(self, batch: Batch, spent_s: float) -> None:
        """Charge a failed batch with the seconds that it took beyond the expected ones.

        Else a model whose runs are ended would get more of the device than its share.
        """
        more_s = max(0.0, spent_s - batch.expected_s)
        batch.queue.used_s += batch.share_of(more_s)

    def _strike(self, model: ModelReplica) -> None:
        if model.strikes.add():
            facts = {"model": model.name, "version": model.version}
            log.error("a model is refused for a while: its runs hold the device up", extra=facts)

    async def _run_each_alone(self, batch: Batch) -> bool:
        """Run each piece alone, as one of them is bad; returns True if one was a strike."""
        was_strike = False
        for piece in batch.pieces:
            if not piece.ticket.has_ended:
                size = batch.lane.table.size_for(piece.rows)
                now = self._now()
                alone = replace(batch, pieces=[piece], size=size, sent_at=now, beside=1)
                was_strike |= await self.run(alone)
        return was_strike

    def _learn(self, batch: Batch, ran: BatchResult, spent_s: float) -> None:
        batch.queue.observer.batch_ran(ran.batch_size, ran.rows, ran.compute_us)
        compute_s = (ran.compute_us or 1) / 1e6  # it took less than its clock tells, not nothing
        batch.lane.table.observe(batch.size, compute_s, batch.beside)
        batch.queue.used_s += batch.share_of(compute_s - batch.expected_s)
        early_s = max(0.0, batch.expected_s - compute_s)
        self._early_s += 0.1 * (early_s - self._early_s)
        if batch.was_idle and not batch.has_waited:
            handover_s = min(max(0.0, spent_s - compute_s), LONGEST_HANDOVER_S)
            self.handover_s += 0.1 * (handover_s - self.handover_s)
            batch.lane.table.handed_over(handover_s)
