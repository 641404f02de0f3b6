"""One compilation from a file to its schedules, in a thread, on a store of its own.

    file ──> Store ──> importer ──artefact──> braid.compiler.compile ──> Compiled
                                                  │ worker, planner: ended when the thread ends
                                                  └── however it ends

Schedules and measurements are kept in the store, so that compiling again takes a moment. One
process compiles at a time; others wait for it.

The store has the layout of a server's, and its settings are a server's: what stands there and in
the environment counts here, too. That is all that the library knows of ``braid.server``.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from time import monotonic

from braid.compiler.compile import compile
from braid.compiler.device import check_offered
from braid.compiler.imported_model import ImportedModel, read_imported
from braid.compiler.larger_sizes import LargerSizes
from braid.compiler.options import ModelOptions
from braid.compiler.outcome import reason
from braid.compiler.outcome import remarks as remarks_of
from braid.compiler.planner import PlannerProcess, SearchLimits
from braid.compiler.progress import (
    IMPORT_ENDS,
    BatchSizeProgress,
    Forecast,
    Phase,
    ProgressReport,
    ReportProgress,
    batch_size_label,
)
from braid.compiler.provisional import better_founded, cores_are_idle, due_at
from braid.compiler.report import Event, Report
from braid.compiler.retries import RetryPauses, RetryWhileRestarting
from braid.compiler.samples import NO_SAMPLES, GivenSamples, check_samples, read_given
from braid.compiler.work import CompileOptions
from braid.core.descriptors import Descriptor
from braid.core.errors import (
    BraidError,
    DamagedArtefact,
    DiskFailure,
    InvalidRequest,
    PreconditionFailed,
    StartupError,
)
from braid.core.regular_file import check_file
from braid.core.schedule import Schedule
from braid.engine.importer.host.launch import import_model
from braid.library.compiled import Compiled
from braid.library.measured_device import MeasuredDevice, measured_device
from braid.server.limits import import_limits
from braid.server.settings import Settings
from braid.server.store.compile_cache import StoreCache
from braid.server.store.files import is_sound
from braid.server.store.quota import StoreLimits
from braid.server.store.records import (
    JobRecord,
    JobStatus,
    ModelStatus,
    ModelVersion,
    Registration,
)
from braid.server.store.sample_upload import SampleUpload
from braid.server.store.store import Store
from braid_client.external_data import ModelFile, with_its_data

PREFIX = "compiled-"
KEPT_MODELS = 32
"""Compiled models whose artefacts are kept; schedules and measurements of all are."""

IMPORT_TRIES = 8
"""Tries of an importer that is killed within its limits: each may use up the machine's memory."""

WAIT_SECONDS = 0.1


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
    options: ModelOptions
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
            async with measured_device(settings) as device:
                check_offered(given.options.precision, [device])
                check_samples(given.options.precision, given=bool(given.samples))
                return await _compile(given, _Parts(settings, store, device, report))
        finally:
            await asyncio.to_thread(store.close)


@dataclass(frozen=True, slots=True)
class _Parts:
    settings: Settings
    store: Store
    device: MeasuredDevice
    report: ReportProgress

    def retry(self, report: Callable[[str], None]) -> RetryWhileRestarting:
        return RetryWhileRestarting(RetryPauses(), report)


@dataclass(slots=True)
class _Outcome:
    schedules: dict[int, Schedule] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


async def _compile(given: GivenFile, parts: _Parts) -> Compiled:
    store, device = parts.store, parts.device
    made = await _registered(given, store, device.device_key, parts.settings.max_samples_bytes)
    await _ask_again(made.model, store, device.device_key)
    try:
        imported = await _import(made.model, parts)
        outcome = await _schedules(imported, parts)
    except BaseException as error:  # a server on this store must not go on with it
        state = JobStatus.FAILED if isinstance(error, BraidError) else JobStatus.CANCELLED
        await store.call(store.end_job, _ended(made, state, str(error)))
        raise
    await _keep_unserved(made, outcome, store)
    if imported.has_strings:
        raise PreconditionFailed(
            "this model takes or gives strings, which braid.compile does not; a server serves it"
        )
    graphs = {
        size: graph
        for size, schedule in outcome.schedules.items()
        if (graph := await store.call(store.find_graph, schedule)) is not None
    }
    schedules = {size: each for size, each in outcome.schedules.items() if size in graphs}
    remarks = (*outcome.failures, *outcome.remarks)
    return Compiled(imported, schedules, graphs, device.options, remarks)


async def _import(model: ModelVersion, parts: _Parts) -> ImportedModel:
    """Make the artefact, unless a sound one exists, and load it on the device."""
    store, folder = parts.store, parts.store.folder
    artefact = folder.artefact(model.sha256)

    def on_progress(fraction: float, step: str) -> None:
        done = IMPORT_ENDS * min(1.0, max(0.0, fraction))
        parts.report(ProgressReport(Phase.IMPORTING, done, step))

    retry = parts.retry(lambda what: on_progress(0.0, what))
    if not await retry(lambda: asyncio.to_thread(is_sound, folder, model.sha256)):
        upload, shapes = folder.upload(model.sha256), dict(model.options.input_shapes) or None
        limits = import_limits(parts.settings)
        await retry(
            lambda: import_model(upload, artefact, limits, on_progress, shapes),
            most_tries=IMPORT_TRIES,
        )
    await store.call(store.discard_upload, model.sha256, is_imported=True)
    read = partial(read_imported, model.sha256, model.options, artefact)
    imported = await retry(lambda: asyncio.to_thread(read))
    on_progress(1.0, f"loading on {parts.device.name}")
    await retry(lambda: parts.device.load(imported.digest, artefact))
    await store.call(store.serves, replace(model, state=ModelStatus.SERVING, message=""))
    return imported


async def _schedules(imported: ImportedModel, parts: _Parts) -> _Outcome:
    """Find or make a schedule for each batch size; one that fails does not stop the others."""
    outcome, options = _Outcome(), imported.options
    samples = NO_SAMPLES
    if options.samples:
        samples = await read_given(imported, parts.store.folder.sample_file(options.samples))
    sizes = () if imported.has_strings else imported.batch_sizes
    forecast = Forecast(sizes, options.planner.time_budget_s)
    for batch_size in sizes:
        label = batch_size_label(batch_size)
        progress = BatchSizeProgress(parts.report, label, forecast)
        try:
            schedule = await _schedule(imported, batch_size, samples, parts, progress)
        except DiskFailure as error:  # nothing that follows could be stored either
            outcome.failures.append(f"{label} and later: {error}")
            break
        except DamagedArtefact:  # no other plan can be made
            raise
        except Exception as error:
            outcome.failures.append(f"{label}: {reason(error, imported.digest[:12], batch_size)}")
        else:
            outcome.schedules[batch_size] = schedule
            if imported.larger_sizes:
                await _find_larger_sizes(imported, schedule, samples, parts, outcome, progress)
            outcome.remarks += [f"{label}: {remark}" for remark in remarks_of(schedule)]
        progress.finished()
    return outcome


async def _find_larger_sizes(
    imported: ImportedModel,
    first: Schedule,
    samples: GivenSamples,
    parts: _Parts,
    outcome: _Outcome,
    progress: BatchSizeProgress,
) -> None:
    """Add the larger batch sizes that pay; ``first`` is the schedule of one row."""
    sizes = LargerSizes(imported, first)
    try:
        while (size := sizes.next()) is not None:
            of_size = replace(progress, label=batch_size_label(size))
            made = await _schedule(imported, size, samples, parts, of_size, sizes.pays)
            if sizes.pays(made):
                outcome.schedules[size] = made
            sizes.tried(made)
    except DamagedArtefact:
        raise
    except BraidError as error:  # the network runs without them
        outcome.remarks.append(f"no larger batch sizes were found: {error}")


async def _schedule(
    imported: ImportedModel,
    batch_size: int,
    samples: GivenSamples,
    parts: _Parts,
    progress: BatchSizeProgress,
    pays: Callable[[Schedule], bool] | None = None,
) -> Schedule:
    """Find or make, and store, the schedule of one batch size.

    With ``pays`` it is measured briefly unless it was stored, and stored only if that says so.
    """
    store, device, settings = parts.store, parts.device, parts.settings
    key = imported.schedule_key(device.device_key, batch_size)
    before = await store.call(store.find_schedule, key.id)
    if before is not None and not before.is_asked:
        return before
    is_brief = pays is not None and before is None
    report: Report = progress
    if is_brief:
        progress.briefly()
        report = _say_nothing
    else:
        progress.begun()
    began = monotonic()
    limits = SearchLimits(settings.planner_memory_bytes, settings.planner_search_seconds)
    planner = PlannerProcess(limits.memory_bytes, limits.seconds)
    options = CompileOptions(planner, settings.tolerance, limits, samples, is_brief=is_brief)
    sizes = imported.batch_sizes
    ids = [imported.schedule_key(device.device_key, size).id for size in sizes]
    cache = StoreCache(store, device.device_key, ids)
    made, graph = await compile(imported, device, batch_size, options, cache, report)
    if is_brief and pays is not None and not pays(made):
        return made
    schedule = better_founded(before, made, monotonic() - began)
    is_new = schedule.unit_names == made.unit_names
    await store.call(store.put_schedule, schedule, graph if is_new else None)
    return schedule


def _say_nothing(event: Event) -> None:
    """Take what a brief compilation tells."""


async def _registered(
    given: GivenFile, store: Store, device_key: str, max_samples_bytes: int
) -> Registration:
    """Copy the file into the store and make its rows, after old ones are dropped."""
    digest, options = sha256(), given.options
    chunks = _with_its_data(given.path).chunks()
    async with AsyncExitStack() as kept, store.receive(1 << 62) as upload:
        samples = SampleUpload(store, max_samples_bytes, "", kept)
        if given.samples:
            await samples.write(given.samples)
        if (sampled := await samples.received()) is not None:
            options = replace(options, samples=sampled.digest)
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
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


def _with_its_data(path: Path) -> ModelFile:
    check_file(path)
    try:
        return with_its_data(path)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


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


async def _keep_unserved(made: Registration, outcome: _Outcome, store: Store) -> None:
    """End the job, and keep the model as one that a server on this store would not serve."""
    state = JobStatus.UNSCHEDULED if outcome.failures else JobStatus.READY
    await store.call(store.end_job, _ended(made, state, "; ".join(outcome.failures)))
    model = made.model
    await store.call(store.set_model_state, model.name, model.version, ModelStatus.UNLOADED, "")


def _ended(made: Registration, state: JobStatus, message: str) -> JobRecord:
    return replace(made.job, state=state, message=message)
