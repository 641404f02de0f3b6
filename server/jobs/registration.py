"""What a registration job does, from the uploaded file to a schedule for every batch size.

    upload ──import──> artefact ──load──> device ──serve──> sequential plan answers
        for each batch size:  cached? ──yes──────────────────────────────────> swap
          no, or asked for again? ─> profile ─> search ─> verify ─> promoted? ─┘
        no batch sizes given? ─> larger ones, measured briefly ─> pay? ─> swap
                                 (by a job that finds the schedule of one row: READY is earlier)

Every step can be done twice: a job cut off by a crash begins again at the top, and finds the
artefact, the measurements and the schedules that were made before.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial

from braid.compiler.compile import compile
from braid.compiler.device import check_offered
from braid.compiler.imported_model import ImportedModel, read_imported
from braid.compiler.larger_sizes import LargerSizes
from braid.compiler.outcome import reason
from braid.compiler.outcome import remarks as remarks_of
from braid.compiler.progress import (
    IMPORT_ENDS,
    LOAD_ENDS,
    BatchSizeProgress,
    Forecast,
    Phase,
    ProgressReport,
    ReportProgress,
    batch_size_label,
)
from braid.compiler.report import Event, StageMeasured, StagesReused
from braid.compiler.results import Cache, with_present_engines
from braid.compiler.retries import IMPORT_TRIES, RetryWhileRestarting
from braid.compiler.samples import NO_SAMPLES, GivenSamples, read_given
from braid.compiler.work import CompileOptions
from braid.core.errors import (
    BraidError,
    DamagedArtefact,
    DeviceOutOfMemory,
    DiskFailure,
    InvalidArtefact,
    TakenOver,
)
from braid.core.schedule import Schedule, ScheduleKey
from braid.engine.importer.host.report import artefact_key, read_report_of
from braid.engine.importer.host.request import Hints
from braid.server.jobs.interfaces import CheckImported, ServingDevice
from braid.server.jobs.services import JobServices
from braid.server.store.files import StoreFolder, is_sound
from braid.server.store.records import ModelStatus, ModelVersion
from braid.server.store.shared_files import ARTEFACT, SAMPLES, UPLOAD

log = logging.getLogger("braid.jobs")


@dataclass(frozen=True, slots=True)
class RegistrationOutcome:
    """Outcome of a registration whose model serves."""

    failures: tuple[str, ...] = ()  # batch sizes without a schedule, and why
    remarks: tuple[str, ...] = ()  # plans that do not serve, and why
    lacks_sizes: bool = False  # whether another job is to look for larger batch sizes


async def register_model(
    model: ModelVersion,
    services: JobServices,
    report: ReportProgress,
    check: CheckImported = lambda imported: None,
) -> RegistrationOutcome:
    """Take a model version from its upload to a schedule for every batch size and device.

    A batch size that fails leaves the model serving sequentially and does not stop the others, nor
    does a device that cannot serve the model. What ``check`` raises ends it before it serves.
    Raises BraidError: the model does not serve; the message is for the user.
    """
    async with AsyncExitStack() as kept:
        await kept.enter_async_context(services.keeping(model.sha256))
        model, imported = await _import(model, services, report, kept)
        check(imported)
        samples = await _samples(imported, services)  # which may not fit the model
        refusals = await _serve_sequentially(model, imported, services, report)
        work = [
            target
            for target in _work(model, imported, services, samples)
            if target.device.name not in refusals
        ]
        sizes = [target.batch_size for target in work]
        forecast = Forecast(sizes, model.options.planner.time_budget_s)
        failures = [f"{name} does not serve it: {error}" for name, error in refusals.items()]
        remarks = []
        lacks_sizes = False
        for target in work:
            progress = BatchSizeProgress(report, target.label(services), forecast)
            try:
                schedule, is_new = await _schedule(target, services, progress)
            except DiskFailure as error:  # nothing that follows could be stored either
                failures.append(f"{progress.label} and later: {error}")
                break
            except TakenOver:  # another server goes on with all that is left
                raise
            except DamagedArtefact:  # lost while a worker was replaced; no other plan can be made
                raise
            except Exception as error:
                failures.append(f"{progress.label}: {reason(error, model.name, target.batch_size)}")
            else:
                if target.imported.larger_sizes:
                    lacks_sizes |= is_new
                    tried = None if is_new else LargerSizes(target.imported, schedule)
                    await _make_larger_sizes(target, tried, services, progress)
                remarks += [f"{progress.label}: {remark}" for remark in remarks_of(schedule)]
            progress.finished()
        return RegistrationOutcome(tuple(failures), tuple(remarks), lacks_sizes)


async def serve_again(
    model: ModelVersion, services: JobServices, devices: Sequence[ServingDevice] | None = None
) -> None:
    """Let an imported model answer with its stored schedules, after a restart of the server.

    ``devices``: that were away when it was registered; None: all. Raises BraidError: the artefact,
    or each of the devices, refuses.
    """
    devices = services.devices if devices is None else devices
    async with services.keeping(model.artefact):
        await services.files.fetch(ARTEFACT, model.artefact)
        imported = await _read(model, services)
        retry = services.retry()
        refusals = await _serve_on(devices, model, imported, services, lambda device: retry)
        for name, error in refusals.items():
            facts = {"model": model.name, "device": name, "reason": str(error)}
            log.error("not served", extra=facts)
        for target in _work(model, imported, services):
            if target.device in devices and target.device.name not in refusals:
                await _use_stored(target, services, retry)
                for size in imported.larger_sizes:
                    await _use_stored(replace(target, batch_size=size), services, retry)


async def _import(
    model: ModelVersion, services: JobServices, report: ReportProgress, kept: AsyncExitStack
) -> tuple[ModelVersion, ImportedModel]:
    """Make the artefact, unless a sound one exists; the job is queued until the import begins.

    Returns the version with the key of its artefact. It is kept loaded while ``kept`` is open.
    """
    folder = services.store.folder
    retry = services.retry(lambda what: _report_import(report, 0.0, what))
    async with services.import_turns.of(model.sha256):
        await retry(lambda: _fetch(model, services))
        if await asyncio.to_thread(_needs_own_artefact, model, folder):
            options = model.options
            key = artefact_key(model.sha256, options.samples, batchable=options.batchable)
            own = replace(model, own_artefact=key)
            await retry(lambda: _fetch(own, services))
            if folder.has_artefact(key) or folder.upload(model.sha256).is_file():
                model = own  # else it was imported before, when samples gave no artefact of its own
        if model.artefact != model.sha256:
            await kept.enter_async_context(services.keeping(model.artefact))
        sound = partial(is_sound, folder, model.artefact, model.sha256)
        if not await retry(lambda: asyncio.to_thread(sound)):
            for device in services.devices:
                device.bench.wake()

            def on_progress(fraction: float, step: str) -> None:
                _report_import(report, IMPORT_ENDS * min(1.0, max(0.0, fraction)), step)

            samples = None
            if digest := model.options.samples:
                await retry(lambda: services.files.fetch(SAMPLES, digest))
                file = folder.sample_file(digest)
                samples = file if file.is_file() else None  # gone: ``_samples`` says so
            await retry(
                lambda: services.import_model(
                    folder.upload(model.sha256),
                    folder.artefact(model.artefact),
                    on_progress,
                    Hints(model.options.input_shapes, samples, model.options.batchable),
                ),
                most_tries=IMPORT_TRIES,
            )
        await retry(lambda: services.files.keep_artefact(model.artefact))
    await services.store.call(services.store.discard_upload, model.sha256, is_imported=True)
    return model, await _read(model, services)


def _needs_own_artefact(model: ModelVersion, folder: StoreFolder) -> bool:
    """True if the options ask for another import than that of the file alone. Blocks.

    Rows are stated to be apart; or an artefact exists whose import tried nothing, and not these
    samples: it may serve other versions, and is not changed under them.
    """
    samples = model.options.samples
    if model.options.batchable:
        return model.artefact == model.sha256
    if not samples or not folder.has_artefact(model.artefact):
        return False
    try:
        report = read_report_of(folder.artefact(model.artefact), model.artefact)
    except InvalidArtefact:  # it is made again, with the samples
        return False
    return not report.verified.batches and report.samples != samples


async def _fetch(model: ModelVersion, services: JobServices) -> None:
    """Bring the artefact of a model into the folder, else the upload that it is made from."""
    files, folder = services.files, services.store.folder
    try:
        await files.fetch(ARTEFACT, model.artefact)
    except DamagedArtefact:
        await files.fetch(UPLOAD, model.sha256)
        if not folder.upload(model.sha256).is_file():
            raise
    else:
        if not folder.has_artefact(model.artefact):
            await files.fetch(UPLOAD, model.sha256)


def _report_import(report: ReportProgress, progress: float, detail: str) -> None:
    report(ProgressReport(Phase.IMPORTING, progress, detail))


async def _read(model: ModelVersion, services: JobServices) -> ImportedModel:
    artefact = services.store.folder.artefact(model.artefact)
    read = partial(read_imported, model.artefact, model.options, artefact)
    imported = await services.retry()(lambda: asyncio.to_thread(read))
    failure = await services.store.call(services.store.padding_failure, model)
    return replace(imported, padding_failure=failure)


async def _samples(imported: ImportedModel, services: JobServices) -> GivenSamples:
    """Samples that a model was registered with, checked; InvalidRequest: wrong or gone."""
    digest = imported.options.samples
    if not digest:
        return NO_SAMPLES
    await services.retry()(lambda: services.files.fetch(SAMPLES, digest))
    return await read_given(imported, services.store.folder.sample_file(digest))


async def _serve_sequentially(
    model: ModelVersion, imported: ImportedModel, services: JobServices, report: ReportProgress
) -> dict[str, BraidError]:
    """Serve a model on every device; returns errors by device name. BraidError: none can."""
    store = services.store

    def retry(device: ServingDevice) -> RetryWhileRestarting:
        loading = f"loading on {device.name}"
        _report_import(report, IMPORT_ENDS, loading)
        return services.retry(
            lambda what: _report_import(report, IMPORT_ENDS, f"{loading}: {what}")
        )

    async with services.load_turn:
        refusals = await _serve_on(services.devices, model, imported, services, retry)
        serving = replace(model, state=ModelStatus.SERVING, message="")
        keep = partial(services.files.keep_artefact, model.artefact)
        try:
            await services.files.stored_with(
                partial(services.retry(), keep), partial(store.call, store.serves, serving)
            )
        except DiskFailure as error:
            if model.state is not ModelStatus.SERVING:  # one that FAILED must not go on answering
                failed = replace(model, state=ModelStatus.FAILED, message=str(error))
                await services.models.unload(failed)
            raise
        services.models.register(serving)
        _report_import(report, LOAD_ENDS, "serving with the sequential plan")
    return refusals


async def _serve_on(
    devices: Sequence[ServingDevice],
    model: ModelVersion,
    imported: ImportedModel,
    services: JobServices,
    retry: Callable[[ServingDevice], RetryWhileRestarting],
) -> dict[str, BraidError]:
    """Load a model on devices and let it answer; returns errors by name. BraidError: all refuse."""
    refusals: dict[str, BraidError] = {}

    async def attempt(device: ServingDevice) -> None:
        while True:
            try:
                await device.load(imported.digest, imported.artefact)
                return await services.models.serve(model, imported, device.name)
            except DeviceOutOfMemory:
                if not await services.room.more(model):
                    raise

    async with services.room.room_for(model):
        for device in devices:
            try:
                await retry(device)(partial(attempt, device))
            except BraidError as error:
                refusals[device.name] = error
                if len(refusals) == len(devices):
                    raise
    return refusals


@dataclass(frozen=True, slots=True)
class _Target:
    """One batch size of a model version at one shape, on one device."""

    model: ModelVersion
    imported: ImportedModel  # at that shape
    device: ServingDevice
    batch_size: int
    samples: GivenSamples = NO_SAMPLES
    is_main: bool = True  # the main one of several shapes
    pays: Callable[[Schedule], bool] | None = None  # of a size that is measured briefly: serves it?

    def label(self, services: JobServices) -> str:
        device = self.device.name if len(services.devices) > 1 else ""
        shapes = "" if self.is_main else self.imported.shapes_text
        return batch_size_label(self.batch_size, device, shapes)

    @property
    def key(self) -> ScheduleKey:
        return self.imported.schedule_key(self.device.device_key, self.batch_size)


async def _schedule(
    target: _Target, services: JobServices, progress: BatchSizeProgress
) -> tuple[Schedule, bool]:
    """Find or make the schedule of one batch size on one device, and let it serve.

    Returns it, and whether it was made.
    """
    # Other devices may have come since the registration, with a restart.
    check_offered(target.imported.options.precision, [target.device])
    retry = services.retry(progress.retrying)
    stored = await _use_stored(target, services, retry)
    if stored is not None and not stored.is_asked:
        return stored, False
    async with services.making_schedule(target.key.id, progress.waiting_for_node) as owned:
        if owned is not services:  # another server may have made it meanwhile
            stored = await _use_stored(target, owned, retry)
            if stored is not None and not stored.is_asked:
                return stored, False
        return await _make(target, owned, progress), True


async def _make(target: _Target, services: JobServices, progress: BatchSizeProgress) -> Schedule:
    """Make and store the schedule of one batch size on one device, and let it serve."""
    device, observer, store = target.device, services.observer, services.store
    is_brief = target.pays is not None

    def report(event: Event) -> None:
        match event:
            case StageMeasured(seconds):
                observer.stage_measured(device.name, seconds)
            case StagesReused(count):
                observer.stages_reused(device.name, count)
            case _:
                progress(event)

    turn = services.device_turns.of(device.name)
    if turn.locked():
        progress.waiting()
    async with turn:
        progress.begun(is_brief=is_brief)
        imported, size = target.imported, target.batch_size
        keys = [
            imported.schedule_key(item.device_key, rows)
            for item in services.devices
            for rows in imported.batch_sizes
        ]
        cache = Cache(store, store.call, device.device_key, keys)
        options = CompileOptions(
            services.planner,
            services.tolerance,
            target.samples,
            services.side_by_side,
            is_brief,
            services.retry(),
        )
        new, graph = await compile(imported, device, size, options, cache, report)
    if is_brief and target.pays is not None and not target.pays(new):
        return new
    wrong = sum(contender.erred for contender in new.provenance.candidates)
    observer.plans_refused(device.name, wrong)
    await store.call(store.put_schedule, new, graph)
    await promote(target.model, device, new, services, services.retry(progress.retrying))
    return new


async def _make_larger_sizes(
    target: _Target, sizes: LargerSizes | None, services: JobServices, progress: BatchSizeProgress
) -> None:
    """Let larger batch sizes serve: those that are asked for again, and of ``sizes`` what pays.

    A failure only ends the search: the model is scheduled without them.
    """
    imported, store = target.imported, services.store

    async def schedule(size: int, pays: Callable[[Schedule], bool] | None = None) -> Schedule:
        of_size = replace(target, batch_size=size, pays=pays)
        its_progress = replace(progress, label=of_size.label(services))
        found, _ = await _schedule(of_size, services, its_progress)
        return found

    try:
        for size in imported.larger_sizes:
            key = imported.schedule_key(target.device.device_key, size)
            stored = await store.call(store.find_schedule, key)
            if stored is not None and stored.is_asked:
                await schedule(size)
        while sizes is not None and (next_size := sizes.next()) is not None:
            sizes.tried(await schedule(next_size, sizes.pays))
    except (TakenOver, DamagedArtefact):
        raise
    except BraidError as error:
        facts = {"model": target.model.name, "reason": str(error)}
        log.warning("no larger batch sizes were found", extra=facts)


async def _use_stored(
    target: _Target, services: JobServices, retry: RetryWhileRestarting
) -> Schedule | None:
    """Let the stored schedule serve; None: there is none that fits."""
    device, store = target.device, services.store
    stored = await store.call(store.find_schedule, target.key)
    schedule = None if stored is None else with_present_engines(stored, device.software)
    if schedule is not None:
        if schedule is not stored:
            await store.call(store.put_schedule, schedule)
        try:
            await promote(target.model, device, schedule, services, retry)
        except InvalidArtefact as error:
            facts = {"schedule_id": schedule.key.id, "reason": str(error)}
            log.warning("unfit schedule", extra=facts)
            await store.call(store.forget_schedule, schedule.key)
            schedule = None
    if schedule is not None or target.batch_size in target.imported.batch_sizes:
        services.observer.schedule_looked_up(schedule is not None)
    return schedule


async def promote(
    model: ModelVersion,
    device: ServingDevice,
    schedule: Schedule,
    services: JobServices,
    retry: RetryWhileRestarting,
) -> None:
    if schedule.provenance.promoted:
        await retry(lambda: services.models.swap(model, device.name, schedule))
    else:
        await retry(lambda: services.models.use_sequential(model, device.name, schedule))
    for on_schedule in services.on_schedule:
        on_schedule(model, device.name, schedule)


def _work(
    model: ModelVersion,
    imported: ImportedModel,
    services: JobServices,
    samples: GivenSamples = NO_SAMPLES,
) -> Iterator[_Target]:
    """All that has a schedule: batch sizes on devices, of the main shape first."""
    if not imported.is_planned:
        return
    for number, at_shape in enumerate(imported.at_shapes()):
        for device in services.devices:
            for batch_size in at_shape.batch_sizes:
                yield _Target(model, at_shape, device, batch_size, samples, is_main=not number)
