"""Which server does which work of a store. A single server does all of it.

``Registry`` is that of a single server; ``braid.server.fleet`` has that of servers that share a
store. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from braid.server.store.records import JobRecord
from braid.server.store.store import Store

if TYPE_CHECKING:
    from braid.server.jobs.runner import JobRunner

CHANGED_SECONDS = 0.2
"""Seconds between two looks at a job that is stored and not live, on a single server."""


@dataclass(frozen=True, slots=True)
class Work:
    """Calls that tell whether this server may do some work."""

    paused: Callable[[], object]  # another one may do it: nothing more, until resumed or lost
    resumed: Callable[[], object]  # it may go on: no other server did it meanwhile
    lost: Callable[[], object]  # another server does it


class Registry:
    """Registry of a single server.

    A grant comes with the registration of a new job, and means something to its registry only.
    """

    is_shared = False
    """True: other servers may do work of the store, too."""

    def attach(self, runner: JobRunner) -> None:
        """Take the runner of the jobs that this server does."""

    async def take_jobs(self) -> None:
        """Begin the jobs that no server does, and those that models lack for these devices.

        A single server's runner has begun them all.
        """

    async def add_missing_jobs(self) -> None:
        """Add jobs that models lack for the devices of this server, which came after its start."""

    def begin(self, grant: object, store: Store, work: Work) -> Store:
        """Return the store to do a job with; ``work`` is told when it may not go on."""
        return store

    def end(self, grant: object, *, was_refused: bool = False) -> None:
        """A job has ended, or is another server's; ``was_refused``: as a write of it showed."""

    async def give_back(self, grant: object) -> None:
        """Let other servers do a job now."""

    async def cancel(self, job_id: str, store: Store) -> JobRecord:
        """End a job that does not run here. JobNotFound, or Unavailable: it has not ended yet."""
        return await store.call(store.find_job, job_id)

    async def cancel_model(self, name: str, version: int) -> None:
        """End the jobs of a model version that other servers do."""

    async def changed(self) -> None:
        await asyncio.sleep(CHANGED_SECONDS)

    @asynccontextmanager
    async def making(
        self, key_id: str, store: Store, waiting: Callable[[], None]
    ) -> AsyncIterator[Store]:
        """Yield the store to make a schedule with; ``waiting`` is told while another server may.

        If it is not ``store``, another server may have made the schedule meanwhile.
        """
        yield store

    def deleting(self, name: str, version: int) -> AbstractAsyncContextManager[None]:
        """Delete a version in the context; another server finishes that if this one is lost."""
        return nullcontext()
