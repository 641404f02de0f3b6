"""What registration jobs work with: the parts of the server, one set for all jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

from braid.compiler.planner import DEFAULT_LIMITS, Planner, SearchLimits
from braid.compiler.retries import RetryPauses, RetryWhileRestarting
from braid.core.keyed_locks import KeyedLocks
from braid.server.jobs.interfaces import (
    ImportModel,
    JobLeases,
    JobObserver,
    OnSchedule,
    PlanTarget,
    ServingDevice,
)
from braid.server.store.fleet.leases import SCHEDULE
from braid.server.store.shared_files.interface import SharedFiles, StoreFolderFiles
from braid.server.store.store import Store


@dataclass(frozen=True, slots=True)
class JobServices:
    """Parts of the server that registrations use. One for all jobs."""

    store: Store
    import_model: ImportModel
    devices: Sequence[ServingDevice]
    planner: Planner
    models: PlanTarget
    observer: JobObserver
    on_schedule: Sequence[OnSchedule]  # told after a schedule serves
    tolerance: float  # of outputs in FP32, relative to the largest element
    limits: SearchLimits = DEFAULT_LIMITS
    # Told after a schedule serves that was found in the store.
    taken_over: OnSchedule = lambda model, device, schedule: None
    prepare_job: Callable[[], None] = lambda: None  # called when no job is under way ...
    quiet: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0)  # ... and this has returned
    files: SharedFiles = field(default_factory=StoreFolderFiles)  # that other servers use, too
    side_by_side: bool = True  # whether registrations measure runs side by side, which then serve
    leases: JobLeases | None = None  # where several nodes share the store
    retry_pauses: RetryPauses = field(default_factory=RetryPauses)
    load_turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # weights are read one by one
    # By device name: measuring needs the device for itself, for one batch size at a time.
    device_turns: KeyedLocks = field(default_factory=KeyedLocks)
    # By digest: a second job for the same bytes finds the artefact of the first.
    import_turns: KeyedLocks = field(default_factory=KeyedLocks)

    @asynccontextmanager
    async def keeping(self, digest: str) -> AsyncIterator[None]:
        """Keep a model loaded on all devices, and its files, while the context is open."""
        async with AsyncExitStack() as kept:
            kept.enter_context(self.files.in_use(digest))
            for device in self.devices:
                await kept.enter_async_context(device.keeping(digest))
            yield

    @asynccontextmanager
    async def owning_schedule(
        self, key_id: str, waiting: Callable[[], None]
    ) -> AsyncIterator[JobServices]:
        """Yield the services to make a schedule with: itself, unless other nodes may make it.

        Then the schedule may have been made by one of them, and writes are refused once this
        node loses the right to make it.
        """
        if self.leases is None:
            yield self
            return
        async with self.leases.owning(SCHEDULE + key_id, waiting) as lease:
            yield replace(self, store=self.store.fenced(lease))

    def retry(self, report: Callable[[str], None] = lambda what: None) -> RetryWhileRestarting:
        """Retries of calls to devices, planner, importer and shared files.

        ``report`` gets a text per retry.
        """
        return RetryWhileRestarting(self.retry_pauses, report, self.store.is_fenced)
