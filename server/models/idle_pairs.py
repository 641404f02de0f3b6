"""Pairs of open contests in idle time, on the inputs of a batch that was answered before.

replicas ──open contest with inputs──> quiet ──runs, one by one──> PlanContest.took
                                                  └─ a request came ──> give way
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from braid.core.contest import BLOCK
from braid.core.errors import BraidError
from braid.server.inference.plan_contest import PlanContest
from braid.server.inference.replica import ModelReplica

log = logging.getLogger("braid.contest")

LOOK_S = 2.0

PAUSE_S = 0.003
"""From one run to the next: longer than thread pools spin, as between requests of one client."""


class IdlePairs:
    """Belongs to the event loop."""

    def __init__(
        self,
        replicas: Callable[[], Iterable[ModelReplica]],
        quiet: Callable[[], Awaitable[object]],
        is_busy: Callable[[], bool],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Run nothing yet.

        Args:
            replicas: of all versions that answer.
            quiet: returns once no device runs requests.
            is_busy: whether one does, or a registration measures.
            sleep: waits for some seconds.
        """
        self._replicas = replicas
        self._quiet = quiet
        self._is_busy = is_busy
        self._sleep = sleep

    async def run(self) -> None:
        """Run pairs in idle time, until cancelled."""
        while True:
            await self._sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Run a pair of each open contest, unless requests come."""
        for replica in self._replicas():
            for _, _, contest in replica.contests:
                if contest.is_open and contest.inputs is not None:
                    await self._quiet()
                    try:
                        await self._pair(replica, contest, contest.inputs)
                    except BraidError as error:  # the worker restarts
                        facts = {"model": replica.name, "reason": str(error)}
                        log.info("no pair in idle time", extra=facts)

    async def _pair(self, replica: ModelReplica, contest: PlanContest, inputs: bytes) -> None:
        arena = replica.device.arena
        offset = arena.allocate(len(inputs))
        if offset is None:
            return
        try:
            for _ in range(2 * BLOCK):
                await self._sleep(PAUSE_S)
                if self._is_busy() or not contest.is_open:
                    return
                arena.view[offset : offset + len(inputs)] = inputs
                ready = contest.next(may_explore=True, free=True)
                replica.begin_use(ready)
                try:
                    done = await replica.device.run(ready, offset)
                finally:
                    replica.end_use(ready)
                contest.took(ready, done.compute_us, is_request=False)
        finally:
            arena.release(offset)
