"""One compilation from a file to its schedules, in a thread, with a folder of its own.

Schedules and measurements are kept in the folder, so that compiling again takes a moment. One
process compiles into it at a time; others wait.

The settings are a server's: what stands in the environment counts here, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from braid.compiler.bench import MODULE, MeasuringProcess
from braid.compiler.compile import compile
from braid.compiler.device import check_offered
from braid.compiler.imported_model import ImportedModel, read_imported
from braid.compiler.larger_sizes import LargerSizes
from braid.compiler.options import ModelOptions
from braid.compiler.outcome import reason
from braid.compiler.outcome import remarks as remarks_of
from braid.compiler.planner import PlannerProcess
from braid.compiler.progress import (
    IMPORT_ENDS,
    BatchSizeProgress,
    Forecast,
    Phase,
    ProgressReport,
    ReportProgress,
    batch_size_label,
)
from braid.compiler.results import Cache, with_present_engines
from braid.compiler.retries import IMPORT_TRIES, RetryPauses, RetryWhileRestarting
from braid.compiler.samples import NO_SAMPLES, GivenSamples, check_samples, read_given
from braid.compiler.work import CompileOptions
from braid.core.errors import (
    BraidError,
    DamagedArtefact,
    DiskFailure,
    InvalidRequest,
    InvalidUpload,
    StartupError,
)
from braid.core.external_data import ModelFile, with_its_data
from braid.core.regular_file import check_file
from braid.core.schedule import Schedule
from braid.engine.importer.host.launch import import_model
from braid.engine.importer.host.request import Hints
from braid.engine.importer.host.samples import digest_of, read_samples
from braid.engine.link.messages import ProgramRequest
from braid.engine.link.options import WorkerOptions
from braid.engine.link.shared_memory import Arena
from braid.engine.link.worker_process import OnProgress
from braid.library.cache_folder import CacheFolder
from braid.library.compiled import Compiled
from braid.server.device_names import parse_device
from braid.server.devices.worker_options import worker_options
from braid.server.settings import Settings


@dataclass(frozen=True, slots=True)
class GivenFile:
    """Model file with what it is to be compiled for."""

    path: Path
    options: ModelOptions
    samples: bytes = b""  # an .npz file; empty: there are none


async def compile_file(given: GivenFile, settings: Settings, report: ReportProgress) -> Compiled:
    """Take a model file from import to its schedules; all processes have ended afterwards.

    Raises BraidError: it cannot be imported or run. Raises OSError: it cannot be read.
    """
    async with CacheFolder.open(settings.store) as folder, measured_device(settings) as device:
        check_offered(given.options.precision, [device])
        check_samples(given.options.precision, given=bool(given.samples))
        with folder.work_folder() as work:
            return await _compile(given, _Parts(settings, folder, work, device, report))


@dataclass(frozen=True, slots=True)
class _Parts:
    settings: Settings
    folder: CacheFolder
    work: Path  # a folder that is removed afterwards
    device: MeasuredDevice
    report: ReportProgress

    def retry(self, report: Callable[[str], None]) -> RetryWhileRestarting:
        return RetryWhileRestarting(RetryPauses(), report)


@dataclass(slots=True)
class _Outcome:
    schedules: dict[int, Schedule] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Received:
    """Copies of a model file and its samples, which nobody changes any more."""

    file: Path
    digest: str  # SHA-256 of the file
    options: ModelOptions
    samples: Path


async def _compile(given: GivenFile, parts: _Parts) -> Compiled:
    folder = parts.folder
    received = await folder.call(_receive, given, parts.work, parts.settings.max_samples_bytes)
    imported = await _import(received, parts)
    shapes = imported.at_shapes()
    sizes = [size for one in shapes if one.is_planned for size in one.batch_sizes]
    forecast = Forecast(sizes, imported.options.planner.time_budget_s)
    main, *others = [
        await _at_shape(one, received.samples, parts, forecast, is_only=len(shapes) == 1)
        for one in shapes
    ]
    return replace(main, lengths=tuple(others))


async def _at_shape(
    imported: ImportedModel, samples: Path, parts: _Parts, forecast: Forecast, *, is_only: bool
) -> Compiled:
    folder, shape = parts.folder, "" if is_only else f"{imported.shapes_text}, "
    outcome = await _schedules(imported, samples, parts, forecast, shape)
    graphs = {
        size: graph
        for size, schedule in outcome.schedules.items()
        if (graph := await folder.call(folder.results.find_graph, schedule)) is not None
    }
    schedules = {size: outcome.schedules[size] for size in graphs}
    remarks = (*outcome.failures, *outcome.remarks)
    return Compiled(imported, schedules, graphs, parts.device.options, remarks)


def _receive(given: GivenFile, work: Path, max_samples_bytes: int) -> _Received:
    """Copy a model file and its samples into a folder.

    Raises InvalidUpload, InvalidRequest (samples, or a missing file of weights), OSError.
    """
    file, samples, options, digest = work / "model", work / "samples", given.options, sha256()
    chunks = _with_its_data(given.path).chunks()
    with file.open("xb") as copy:
        for chunk in chunks:
            digest.update(chunk)
            copy.write(chunk)
        if not copy.tell():
            raise InvalidUpload(f"{given.path} is empty")
    if given.samples:
        if len(given.samples) > max_samples_bytes:
            raise InvalidUpload(
                f"the samples take more than {max_samples_bytes} bytes "
                "(BRAID_MAX_SAMPLES_BYTES); give fewer"
            )
        samples.write_bytes(given.samples)
        options = replace(options, samples=digest_of(read_samples(samples, max_samples_bytes)))
    return _Received(file, digest.hexdigest(), options, samples)


def _with_its_data(path: Path) -> ModelFile:
    check_file(path)
    try:
        return with_its_data(path)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


async def _import(received: _Received, parts: _Parts) -> ImportedModel:
    """Make the artefact, unless a sound one exists, and load it on the device."""
    folder, digest, options = parts.folder, received.digest, received.options
    artefact = folder.artefact(digest)

    def on_progress(fraction: float, step: str) -> None:
        done = IMPORT_ENDS * min(1.0, max(0.0, fraction))
        parts.report(ProgressReport(Phase.IMPORTING, done, step))

    retry = parts.retry(lambda what: on_progress(0.0, what))
    samples = received.samples if options.samples else None
    is_there = partial(folder.has_sound_artefact, digest, is_tried=samples is not None)
    if not await retry(lambda: folder.call(is_there)):
        hints, limits = Hints(options.input_shapes, samples), parts.settings.import_limits
        await retry(
            lambda: import_model(received.file, artefact, limits, on_progress, hints),
            most_tries=IMPORT_TRIES,
        )
    read = partial(read_imported, digest, options, artefact)
    imported = await retry(lambda: asyncio.to_thread(read))
    on_progress(1.0, f"loading on {parts.device.name}")
    await retry(lambda: parts.device.load(imported.digest, artefact))
    return imported


async def _schedules(
    imported: ImportedModel, samples_file: Path, parts: _Parts, forecast: Forecast, shape: str
) -> _Outcome:
    """Find or make a schedule for each batch size; one that fails does not stop the others.

    ``shape`` stands before the batch size in what is told of it.
    """
    outcome, options = _Outcome(), imported.options
    samples = NO_SAMPLES
    if options.samples:
        samples = await read_given(imported, samples_file)
    sizes = imported.batch_sizes if imported.is_planned else ()
    for batch_size in sizes:
        label = f"{shape}{batch_size_label(batch_size)}"
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
            outcome.remarks += [f"{label}: {remark}" for remark in remarks_of(schedule)]
            if imported.larger_sizes:
                await _find_larger_sizes(imported, schedule, samples, parts, outcome, progress)
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
            schedule = await _schedule(imported, size, samples, parts, of_size, sizes.pays)
            if sizes.pays(schedule):
                outcome.schedules[size] = schedule
            sizes.tried(schedule)
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
    folder, device, settings = parts.folder, parts.device, parts.settings
    sizes = {*imported.batch_sizes, batch_size}
    keys = {size: imported.schedule_key(device.device_key, size) for size in sizes}
    stored = await folder.call(folder.results.find_schedule, keys[batch_size])
    if (
        stored is not None
        and not stored.is_asked
        and (with_present_engines(stored, device.software) is stored)
    ):
        return stored
    is_brief = pays is not None and stored is None
    progress.begun(is_brief=is_brief)
    planner = PlannerProcess(settings.planner_memory_bytes, settings.planner_search_seconds)
    options = CompileOptions(planner, settings.tolerance, samples, is_brief=is_brief)
    cache = Cache(folder.results, folder.call, device.device_key, list(keys.values()))
    new, graph = await compile(imported, device, batch_size, options, cache, progress)
    if is_brief and pays is not None and not pays(new):
        return new
    await folder.call(folder.results.put_schedule, new, graph)
    return new


R = TypeVar("R")


@dataclass(slots=True)
class MeasuredDevice:
    """A ``braid.compiler.device.Device`` that serves nobody. Belongs to the event loop."""

    name: str
    options: WorkerOptions
    bench: MeasuringProcess
    artefacts: dict[str, Path]  # that ``bench`` loads, by digest
    device_key: str
    precisions: tuple[str, ...]
    runtimes: tuple[str, ...]
    software: Mapping[str, str]

    async def load(self, digest: str, artefact: Path) -> None:
        self.artefacts[digest] = artefact
        await self.bench.load(digest)

    async def ask(self, request: ProgramRequest[R], on_progress: OnProgress | None = None) -> R:
        return await self.bench.call(request, on_progress)


@asynccontextmanager
async def measured_device(settings: Settings) -> AsyncIterator[MeasuredDevice]:
    """Start the device of the settings, ended afterwards; StartupError: it cannot be used."""
    name = parse_device(*settings.devices)
    options = replace(worker_options(settings, name), module=MODULE)
    arena, artefacts = Arena(options.arena_bytes), dict[str, Path]()
    bench = MeasuringProcess(name.text, options, arena, artefacts.__getitem__)
    try:
        try:
            described = await bench.describe()
        except (BraidError, OSError) as error:
            raise StartupError(f"{name.text}: {error}") from error
        facts = described.device_key, described.precisions, described.runtimes, described.software
        yield MeasuredDevice(name.text, options, bench, artefacts, *facts)
    finally:
        await bench.close()
        arena.close()
