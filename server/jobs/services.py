"""What registration jobs work with: the parts of the server, one set for all jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

from braid.compiler.planner import Planner
from braid.compiler.retries import RetryPauses, RetryWhileRestarting
from braid.core.keyed_locks import KeyedLocks
from braid.server.jobs.interfaces import (
    ImportModel,
    JobObserver,
    OnSchedule,
    PlanTarget,
    Room,
    ServingDevice,
)
from braid.server.jobs.registry import Registry
from braid.server.store.records import DEVICE_KEYS_SEPARATOR
from braid.server.store.shared_files import Files
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
    quiet: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0)  # returns once no device runs
    files: Files = field(default_factory=Files)  # that other servers use, too
    side_by_side: bool = True  # whether registrations measure runs side by side, which then serve
    registry: Registry = field(default_factory=Registry)  # which server does what
    room: Room = field(default_factory=Room)  # in memory
    retry_pauses: RetryPauses = field(default_factory=RetryPauses)
    load_turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # weights are read one by one
    # By device name: measuring needs the device for itself, for one batch size at a time.
    device_turns: KeyedLocks = field(default_factory=KeyedLocks)
    # By digest: a second job for the same bytes finds the artefact of the first.
    import_turns: KeyedLocks = field(default_factory=KeyedLocks)

    @property
    def device_keys(self) -> str:
        """Keys of all devices that jobs schedule for, as one text."""
        return DEVICE_KEYS_SEPARATOR.join(sorted(device.device_key for device in self.devices))

    @asynccontextmanager
    async def keeping(self, digest: str) -> AsyncIterator[None]:
        async with AsyncExitStack() as kept:
            kept.enter_context(self.files.in_use(digest))
            for device in self.devices:
                await kept.enter_async_context(device.keeping(digest))
            yield

    @asynccontextmanager
    async def making_schedule(
        self, key_id: str, waiting: Callable[[], None]
    ) -> AsyncIterator[JobServices]:
        """Yield the services to make a schedule with: itself, unless other servers may make it.

        Then one of them may have made it meanwhile, and writes are refused once another may.
        """
        async with self.registry.making(key_id, self.store, waiting) as store:
            yield self if store is self.store else replace(self, store=store)

    def retry(self, report: Callable[[str], None] = lambda what: None) -> RetryWhileRestarting:
        """Retries of calls to devices, planner, importer and files; ``report`` gets a text each."""
        return RetryWhileRestarting(self.retry_pauses, report, self.store.is_revocable)
