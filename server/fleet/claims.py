"""When this node looks for jobs to take over: after each notification, and several times a lease.

beat missed ──lease over──> claim ──> the job goes on here, from what was stored of it
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic

from braid.core.errors import BraidError
from braid.server.jobs.runner import JobRunner

log = logging.getLogger("braid.fleet")

LOOKS_A_LEASE = 5.0
"""Looks for jobs without an owner within the time of a lease, if no notification comes."""

MORE_SECONDS = 0.25
"""Pause in which other nodes may take jobs, when there are more than this node took at once."""


class ClaimLoop:
    """Takes jobs over, cancels those that are to end, adds those that are due."""

    def __init__(self, runner: JobRunner, lease_seconds: float, poll_seconds: float) -> None:
        """Look at nothing yet."""
        self._runner = runner
        self._look_s = min(lease_seconds / LOOKS_A_LEASE, poll_seconds)
        self._poll_s = poll_seconds
        self._woken = asyncio.Event()
        self._scheduled_at = monotonic()  # jobs of the devices of this node
        self._is_away = False

    def wake(self) -> None:
        """Look soon: a notification has come."""
        self._woken.set()

    async def run(self) -> None:
        """Look, until cancelled."""
        while True:
            self._woken.clear()
            has_more = await self._tried(self._runner.claim)
            if monotonic() >= self._scheduled_at + self._poll_s:
                self._scheduled_at = monotonic()
                await self._tried(self._runner.schedule_for_this_type)
                await self._tried(self._runner.finish_deletions)
            with suppress(TimeoutError):
                async with asyncio.timeout(MORE_SECONDS if has_more else self._look_s):
                    await self._woken.wait()

    async def _tried(self, look: Callable[[], Awaitable[bool | None]]) -> bool:
        """Look; an error of the database ends no loop, and is logged once."""
        try:
            has_more = bool(await look())
        except BraidError as error:
            if not self._is_away:
                log.warning("no jobs are taken over", extra={"reason": str(error)})
            self._is_away = True
            return False
        except Exception:
            log.exception("no jobs are taken over")
            return False
        self._is_away = False
        return has_more
