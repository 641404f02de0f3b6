"""When this node looks at what the others changed: at its start, when told, and now and then.

    notification ──┐
    poll ──────────┼──> look ──> Reconciler ──> what this node serves is as the database says
    failed load ───┘

Not on the path of an inference. While the database is away everything serves on as it does.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from time import monotonic

from braid.core.errors import BraidError
from braid.server.fleet.metrics import FollowMetrics
from braid.server.fleet.notifications import Change
from braid.server.fleet.reconcile import Reconciler

log = logging.getLogger("braid.fleet")

LOOKED_AT = ("", "models", "serving", "schedules")
"""Changes after which a node looks; of jobs only while one of its own is in the way."""

GATHER_S = 0.05
"""Seconds in which further notifications belong to the same look."""

LEAST_S = 0.5
"""Least seconds between two looks that nothing but a failed load asks for."""

AWAY_S = 1.0
"""Seconds between two looks while the database is away."""


class Following:
    """Looks of one node at what others changed. Belongs to the event loop."""

    def __init__(
        self,
        reconciler: Reconciler,
        observer: FollowMetrics,
        poll_seconds: float,
    ) -> None:
        """Look at nothing yet; ``poll_seconds`` is the longest time between two looks."""
        self._reconciler = reconciler
        self._observer = observer
        self._poll_seconds = poll_seconds
        self._heard = asyncio.Event()
        self._made_at: float | None = None  # of the oldest change heard since the last look
        self._looked_at: float | None = None  # begin of the last look that was answered
        self._is_away = False

    def hear(self, change: Change) -> None:
        """Look soon if a change may be one that this node follows."""
        if change.what in LOOKED_AT or self._reconciler.waits_for_jobs:
            if change.made_at is not None and self._made_at is None:
                self._made_at = change.made_at
            self._heard.set()

    async def run(self) -> None:
        try:
            while True:
                await self._look()
                pause_s = AWAY_S if self._is_away else self._poll_seconds
                if (next_s := self._reconciler.next_load_s) is not None:
                    pause_s = min(pause_s, max(next_s, LEAST_S))
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._heard.wait()
                await asyncio.sleep(GATHER_S)
        finally:
            await self._reconciler.stop()

    async def _look(self) -> None:
        """Look once; a change that no notification told is no older than the look before."""
        self._heard.clear()
        made_at = self._looked_at if self._made_at is None else self._made_at
        self._made_at, began = None, monotonic()
        try:
            await self._reconciler.look(made_at)
        except BraidError as error:
            if not self._is_away:
                log.warning("the database is not followed", extra={"reason": str(error)})
            self._is_away = True
        except Exception:
            log.exception("the database is not followed")
            self._is_away = True
        else:
            if self._is_away:
                log.info("the database is followed again")
            self._is_away, self._looked_at = False, began
        self._observer.looked(not self._is_away)
