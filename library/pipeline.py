"""One registration without a server: the server's job, on a store of its own, in a thread.

    file ──> Store ──register_model──> device worker, importer, planner ──> Compiled
                                           └── all ended when the thread ends, however it ends

Schedules and measurements are kept in the store, so that compiling again takes a moment. One
process compiles at a time; others wait for it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from braid.core.descriptors import Descriptor
from braid.core.errors import BraidError, PreconditionFailed, StartupError
from braid.core.regular_file import open_file
from braid.core.schedule import Schedule
from braid.engine.importer.host.launch import import_model
from braid.engine.link.shared_memory import Arena
from braid.engine.link.supervisor import WorkerLink
from braid.library.compiled import Compiled
from braid.server.devices.device import DeviceEvents
from braid.server.devices.measuring.host import ArtefactOf, MeasuringHost
from braid.server.devices.measuring.serving import ServingProcess
from braid.server.devices.pool import Devices
from braid.server.jobs.imported_model import ImportedModel
from braid.server.jobs.imports import Imports
from braid.server.jobs.planner.driver import PlannerProcess
from braid.server.jobs.progress import ReportProgress
from braid.server.jobs.provisional_schedules import cores_are_idle, due_at
from braid.server.jobs.registration import RegistrationOutcome, register_model
from braid.server.jobs.services import JobServices, check_offered, check_samples
from braid.server.limits import import_limits
from braid.server.servicers.samples import SampleUpload
from braid.server.settings import Settings
from braid.server.store.quota import StoreLimits
from braid.server.store.records import (
    JobRecord,
    JobStatus,
    ModelStatus,
    ModelVersion,
    Registration,
    RegistrationOptions,
)
from braid.server.store.store import Store

PREFIX = "compiled-"
KEPT_MODELS = 32
"""Compiled models whose artefacts are kept; schedules and measurements of all are."""

CHUNK_BYTES = 4 << 20
WAIT_SECONDS = 0.1


@dataclass(slots=True)
class Findings:
    """What a registration finds: the target of its plans, and the observer of its work."""

    imported: ImportedModel | None = None
    schedules: dict[int, Schedule] = field(default_factory=dict)

    def register(self, model: ModelVersion) -> None:
        """Do nothing: no request asks for the model."""

    def was_not_restored(self, model: ModelVersion) -> bool:
        """Return False: nothing served before."""
        return False

    def replacing(self, model: ModelVersion) -> None:
        """Do nothing: no version takes another one's place."""

    def give_up(self, model: ModelVersion) -> bool:
        """Return False: no version takes another one's place."""
        return False

    async def serve(self, imported: ImportedModel, device: str) -> None:
        """Keep the imported model."""
        self.imported = imported

    async def swap(self, model: ModelVersion, device: str, schedule: Schedule) -> None:
        """Keep a schedule that is to run."""
        self.schedules[schedule.key.batch_size] = schedule

    def expect_sequential(self, model: ModelVersion, device: str, schedule: Schedule) -> None:
        """Keep a schedule whose sequential plan is to run."""
        self.schedules[schedule.key.batch_size] = schedule

    async def unload(self, model: ModelVersion) -> None:
        """Do nothing: nothing is loaded for requests."""

    def jobs_counted(self, by_state: Mapping[str, int]) -> None:
        """Count nothing."""

    def stage_measured(self, device: str, seconds: float) -> None:
        """Count nothing."""

    def stages_reused(self, device: str, count: int) -> None:
        """Count nothing."""

    def schedule_looked_up(self, hit: bool) -> None:
        """Count nothing."""

    def plans_refused(self, device: str, count: int) -> None:
        """Count nothing."""


@asynccontextmanager
async def turn_of(folder: Path) -> AsyncIterator[None]:
    """Wait until no other process or thread compiles into a store.

    Raises:
        StartupError: the folder cannot be written.
    """
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        lock = Descriptor(os.open(folder / "compiling", flags, 0o600))
    except OSError as error:
        raise StartupError(f"{folder} cannot be written: {error.strerror}") from error
    with lock:
        while not _is_free(lock):  # noqa: ASYNC110  # others are processes
            await asyncio.sleep(WAIT_SECONDS)
        yield


def _is_free(lock: Descriptor) -> bool:
    """Take a lock, unless another process or thread has it."""
    try:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class GivenFile:
    """Model file with what it is to be compiled for."""

    path: Path
    options: RegistrationOptions
    samples: bytes = b""  # an .npz file; empty: there are none


async def compile_file(given: GivenFile, settings: Settings, report: ReportProgress) -> Compiled:
    """Take a model file from import to its schedules; all processes have ended afterwards.

    Raises:
        BraidError: the file cannot be imported, or the device cannot run it.
        OSError: the file cannot be read.
    """
    async with turn_of(settings.store):
        store = Store.open(settings.store, StoreLimits(max_models=1 << 30))
        try:
            devices = Devices(settings, DeviceEvents(), _measured_where_it_runs)
            try:
                await devices.start()
                check_offered(given.options.precision, devices.all)
                check_samples(given.options.precision, given=bool(given.samples))
                return await _compile(given, settings, _Parts(store, devices, report))
            finally:
                await devices.close()
        finally:
            await asyncio.to_thread(store.close)


@dataclass(frozen=True, slots=True)
class _Parts:
    store: Store
    devices: Devices
    report: ReportProgress


async def _compile(given: GivenFile, settings: Settings, parts: _Parts) -> Compiled:
    store, (device,) = parts.store, parts.devices.all
    found = Findings()
    services = JobServices(
        store=store,
        import_model=Imports(import_model, import_limits(settings)),
        devices=parts.devices.all,
        planner=PlannerProcess(settings.planner_memory_bytes, settings.planner_search_seconds),
        models=found,
        observer=found,
        on_schedule=(),
        tolerance=settings.tolerance,
    )
    made = await _registered(given, store, device.device_key, settings.max_samples_bytes)
    await _ask_again(made.model, store, device.device_key)
    try:
        outcome = await register_model(made.model, services, parts.report)
    except BaseException as error:  # a server on this store must not go on with it
        state = JobStatus.FAILED if isinstance(error, BraidError) else JobStatus.CANCELLED
        await store.call(store.end_job, _ended(made, state, str(error)))
        raise
    await _keep_unserved(made, outcome, store)
    assert found.imported is not None
    if found.imported.has_strings:
        raise PreconditionFailed(
            "this model takes or gives strings, which braid.compile does not; a server serves it"
        )
    graphs = {
        size: graph
        for size, schedule in found.schedules.items()
        if (graph := await store.call(store.find_graph, schedule)) is not None
    }
    return Compiled(
        found.imported,
        {size: schedule for size, schedule in found.schedules.items() if size in graphs},
        graphs,
        device.link.options,
        (*outcome.failures, *outcome.remarks),
    )


async def _registered(
    given: GivenFile, store: Store, device_key: str, max_samples_bytes: int
) -> Registration:
    """Copy the file into the store and make its rows, after old ones are dropped."""
    digest, options = sha256(), given.options
    with open_file(given.path) as content:
        async with AsyncExitStack() as kept, store.receive(1 << 62) as upload:
            samples = SampleUpload(store, max_samples_bytes, "", kept)
            if given.samples:
                await samples.write(given.samples)
            if (sampled := await samples.received()) is not None:
                options = replace(options, samples=sampled.digest)
            while chunk := await asyncio.to_thread(content.read, CHUNK_BYTES):
                digest.update(chunk)
                await upload.write(chunk)
            received = await upload.finish(digest.hexdigest())
            received = replace(received, samples=sampled)
            ours = [each for each in await store.call(store.models) if _is_ours(each)]
            ours.sort(key=lambda each: each.created_unix)
            for old in ours[: max(0, len(ours) - KEPT_MODELS)]:
                await store.call(store.delete_model, old.name, old.version)
            name = f"{PREFIX}{received.sha256[:16]}"
            return await store.call(store.register, name, received, options, device_key)


async def _ask_again(model: ModelVersion, store: Store, device_key: str) -> None:
    """Have provisional schedules made again, if that may be of use now."""
    found = await store.call(store.schedules_for, model, device_key)
    now = time.time()
    due = [
        schedule
        for schedule in found
        if (each := schedule.provenance.provisional) is not None and due_at(each, now) <= now
    ]
    if due and await cores_are_idle():
        await store.call(store.ask_again, due)


def _is_ours(model: ModelVersion) -> bool:
    return model.name.startswith(PREFIX)


async def _keep_unserved(made: Registration, outcome: RegistrationOutcome, store: Store) -> None:
    """End the job, and keep the model as one that a server on this store would not serve."""
    state = JobStatus.UNSCHEDULED if outcome.failures else JobStatus.READY
    await store.call(store.end_job, _ended(made, state, "; ".join(outcome.failures)))
    model = made.model
    await store.call(store.set_model_state, model.name, model.version, ModelStatus.UNLOADED, "")


def _ended(made: Registration, state: JobStatus, message: str) -> JobRecord:
    return replace(made.job, state=state, message=message)


def _measured_where_it_runs(
    link: WorkerLink, arena: Arena, artefact_of: ArtefactOf
) -> MeasuringHost:
    return ServingProcess(link)
