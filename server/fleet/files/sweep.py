"""Sweeps of the shared place: what no row needs goes, never what any server uses.

    every server   touches the rows of what it uses, several times in the grace time
    one of them    condemns rows that nothing needs ──> deletes their objects ──> forgets the rows

Objects without a row stay: those of another database, or of this one before it was restored.

Two sweeps at once, or one that slept in the middle, do no harm: an object that was condemned is
never used again, and its key never given to another. So the lease only saves work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from braid.core.errors import BraidError
from braid.server.fleet.files.interface import MaySweep
from braid.server.fleet.files.place import ObjectPlace
from braid.server.fleet.metrics import FileMetrics
from braid.server.fleet.store import FleetStore

log = logging.getLogger("braid.files")

TOUCHES = 6
"""Touches of what is used in a grace time: a server that misses some loses nothing."""

Used = Callable[[], tuple[set[str], set[str]]]
"""Returns the digests that this server uses, and the keys that it puts."""


class FileSweep:
    """Sweeps of one server. Belongs to the event loop."""

    def __init__(
        self,
        place: ObjectPlace,
        store: FleetStore,
        observer: FileMetrics,
        grace_s: float,
        may_sweep: MaySweep,
    ) -> None:
        self._place = place
        self._store = store
        self._observer = observer
        self._grace_s = grace_s
        self._may_sweep = may_sweep
        self._deleted: set[str] = set()  # rows are kept for the grace time

    async def run(self, before: Callable[[], Awaitable[None]], used: Used) -> None:
        """Touch and sweep until cancelled; what fails is tried again the next time."""
        store = self._store
        while True:
            await asyncio.sleep(self._grace_s / TOUCHES)
            try:
                digests, keys = used()
                if digests or keys:
                    await store.call(store.touch_objects, digests, keys)
                if await self._may_sweep():
                    await before()
                    await self.once()
            except BraidError as error:
                self._observer.failed("sweep")
                log.warning("the shared files were not swept: %s", error)
            except Exception:
                self._observer.failed("sweep")
                log.exception("the shared files were not swept")

    async def once(self) -> int:
        """Remove what is of no use to any server; returns the number of objects.

        Raises:
            Unavailable: the place or the database does not answer; the next sweep goes on.
        """
        store, grace_s = self._store, self._grace_s
        condemned = await store.call(store.condemn_objects, grace_s)
        await self._place.delete(condemned)
        await store.call(store.forget_objects, condemned, grace_s)
        count = len(set(condemned) - self._deleted)
        self._deleted = set(condemned)
        self._observer.swept(count)
        if count:
            log.info("removed shared files of no use", extra={"count": count})
        return count
