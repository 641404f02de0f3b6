"""Pairs of open contests in idle time, on the inputs of a batch that was answered before.

Before the first batch inputs are zeros.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from time import monotonic

from braid.core.errors import BraidError, Unavailable
from braid.server.inference.plan_contest import PlanContest
from braid.server.inference.replica import ModelReplica

log = logging.getLogger("braid.contest")

LOOK_S = 2.0

ROUND_S = 0.5
"""Least time from one pair of a contest to the next: pairs that span a minute are to show the
states that the host has in it, and an idle device is to stay idle."""


class IdlePairs:
    """Belongs to the event loop."""

    def __init__(
        self,
        replicas: Callable[[], Iterable[ModelReplica]],
        quiet: Callable[[], Awaitable[object]],
        is_busy: Callable[[], bool],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """``quiet`` returns once no device runs requests; ``is_busy`` also counts measuring."""
        self._replicas = replicas
        self._quiet = quiet
        self._is_busy = is_busy
        self._sleep = sleep

    async def run(self) -> None:
        while True:
            await self._sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Run a pair of each open contest every half second, until requests come."""
        if not self._open():
            return
        await self._quiet()
        while not self._is_busy() and (contests := self._open()):
            began = monotonic()
            for replica, contest in contests:
                try:
                    await self._pair(replica, contest)
                except Unavailable:  # the worker restarts
                    return
                except BraidError as error:
                    contest.takes_zeros, contest.inputs = False, None
                    facts = {"model": replica.name, "reason": str(error)}
                    log.info("no pairs in idle time until other inputs come", extra=facts)
            elapsed_s = monotonic() - began
            await self._sleep(max(elapsed_s, ROUND_S - elapsed_s))

    def _open(self) -> list[tuple[ModelReplica, PlanContest]]:
        return [
            (replica, contest)
            for replica in self._replicas()
            for _, _, contest in replica.contests
            if contest.is_open and contest.can_be_tried
        ]

    async def _pair(self, replica: ModelReplica, contest: PlanContest) -> None:
        arena, inputs = replica.device.arena, contest.slot()
        offset = arena.allocate(len(inputs))
        if offset is None:
            return
        try:
            while not self._is_busy() and contest.is_open:
                arena.view[offset : offset + len(inputs)] = inputs
                ready = contest.next(may_explore=True, free=True)
                replica.begin_use(ready)
                try:
                    done = await replica.device.run(ready, offset)
                finally:
                    replica.end_use(ready)
                contest.took(ready, done.compute_us, is_request=False)
                await self._sleep(contest.gap_s)
                if not contest.is_in_pair:
                    return
        finally:
            arena.release(offset)
