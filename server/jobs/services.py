"""What registration jobs work with: the parts of the server, one set for all jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

from braid.core.errors import InvalidRequest
from braid.core.keyed_locks import KeyedLocks
from braid.core.precision import AUTO, AUTO_TOLERANCE, FP32, INT8, TOLERANCES
from braid.server.jobs.interfaces import (
    ImportModel,
    JobObserver,
    OnSchedule,
    Planner,
    PlanTarget,
    ServingDevice,
)
from braid.server.jobs.registry import Registry
from braid.server.jobs.retries import RetryPauses, RetryWhileRestarting
from braid.server.store.records import RegistrationOptions
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
    prepare_job: Callable[[], None] = lambda: None  # called when no job is under way ...
    quiet: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0)  # ... and this has returned
    files: Files = field(default_factory=Files)  # that other servers use, too
    side_by_side: bool = True  # whether registrations measure runs side by side, which then serve
    registry: Registry = field(default_factory=Registry)  # which server does what
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
    async def making_schedule(
        self, key_id: str, waiting: Callable[[], None]
    ) -> AsyncIterator[JobServices]:
        """Yield the services to make a schedule with: itself, unless other servers may make it.

        Then one of them may have made it meanwhile, and writes are refused once another may.
        """
        async with self.registry.making(key_id, self.store, waiting) as store:
            yield self if store is self.store else replace(self, store=store)

    def retry(self, report: Callable[[str], None] = lambda what: None) -> RetryWhileRestarting:
        """Retries of calls to devices, planner, importer and shared files.

        ``report`` gets a text per retry.
        """
        return RetryWhileRestarting(self.retry_pauses, report, self.store.is_revocable)

    def tolerated_error(self, options: RegistrationOptions) -> float:
        """Allowed error of outputs against FP32, relative to the largest element of each."""
        if options.accepted_error is not None:
            return options.accepted_error
        return TOLERANCES.get(options.precision, self.tolerance)

    def tolerated_in(self, precision: str, options: RegistrationOptions) -> float:
        """Allowed error of one of the precisions that ``auto`` chooses from.

        FP32 is held to what it is held to without ``auto``, whatever error is accepted.
        """
        if precision == FP32:
            return self.tolerance
        return AUTO_TOLERANCE if options.accepted_error is None else options.accepted_error


def check_offered(precision: str, devices: Sequence[ServingDevice]) -> None:
    """Raise InvalidRequest unless all ``devices`` can compute in ``precision``."""
    for device in devices:
        if precision not in (AUTO, *device.precisions):
            raise InvalidRequest(
                f"device {device.name} computes in {', '.join(device.precisions)}, not in "
                f"{precision}; register the model in a precision that every device of this "
                "server offers, or with precision auto"
            )


def check_samples(precision: str, *, given: bool) -> None:
    """Raise InvalidRequest if ``precision`` needs samples and none are ``given``."""
    if precision == INT8 and not given:
        raise InvalidRequest(
            "precision int8 takes the ranges of its integers from samples of the model's inputs; "
            "give some, e.g. with --samples FILE.npz"
        )
