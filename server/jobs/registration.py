"""What a registration job does, from the uploaded file to a schedule for every batch size.

    upload ──import──> artefact ──load──> device ──serve──> sequential plan answers
        for each batch size:  cached? ──yes──────────────────────────────────> swap
          no, or asked for again? ─> profile ─> search ─> verify ─> promoted? ─┘

Every step can be done twice: a job cut off by a crash begins again at the top, and finds the
artefact, the measurements and the schedules that were made before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic

from braid.core.errors import (
    BraidError,
    DamagedArtefact,
    DiskFailure,
    InvalidArtefact,
    TakenOver,
)
from braid.core.schedule import Schedule
from braid.engine.importer.host.report import check_files
from braid.server.jobs.imported_model import ImportedModel, read_imported
from braid.server.jobs.interfaces import CheckImported, ServingDevice
from braid.server.jobs.progress import (
    IMPORT_ENDS,
    LOAD_ENDS,
    BatchSizeProgress,
    Forecast,
    ProgressReport,
    ReportProgress,
    batch_size_label,
)
from braid.server.jobs.retries import RetryWhileRestarting
from braid.server.jobs.scheduling.one_schedule import make_schedule
from braid.server.jobs.scheduling.precision.given_samples import given_samples
from braid.server.jobs.scheduling.provisional import better_founded
from braid.server.jobs.services import JobServices, check_offered
from braid.server.store.files import StoreFolder
from braid.server.store.records import JobStatus, ModelStatus, ModelVersion

log = logging.getLogger("braid.jobs")

IMPORT_TRIES = 8
"""Tries of an importer that is killed within its limits, half a minute of pauses in all.

Fewer than of a call that measures: each may use up the machine's memory.
"""


@dataclass(frozen=True, slots=True)
class RegistrationOutcome:
    """Outcome of a registration whose model serves."""

    failures: tuple[str, ...] = ()  # batch sizes without a schedule, and why
    remarks: tuple[str, ...] = ()  # plans that do not serve, and why


async def register_model(
    model: ModelVersion,
    services: JobServices,
    report: ReportProgress,
    check: CheckImported = lambda imported: None,
) -> RegistrationOutcome:
    """Take a model version from its upload to a schedule for every batch size and device.

    A batch size that fails leaves the model serving sequentially and does not stop the others,
    nor does a device that cannot serve the model. What ``check`` raises ends it before it serves.

    Raises:
        BraidError: the model does not serve; the message is for the user.
    """
    async with services.keeping(model.sha256):
        imported = await _import(model, services, report)
        check(imported)
        await given_samples(imported, services)  # which may not fit the model
        refusals = await _serve_sequentially(imported, services, report)
        work = [each for each in _work(imported, services) if each[0].name not in refusals]
        forecast = Forecast([size for _, size in work], model.options.planner.time_budget_s)
        failures = [f"{name} does not serve it: {error}" for name, error in refusals.items()]
        remarks = []
        for device, batch_size in work:
            progress = BatchSizeProgress(report, _label(device, batch_size, services), forecast)
            try:
                schedule = await _schedule(imported, device, batch_size, services, progress)
            except DiskFailure as error:  # nothing that follows could be stored either
                failures.append(f"{progress.label} and later: {error}")
                break
            except TakenOver:  # another server goes on with all that is left
                raise
            except DamagedArtefact:  # lost while a worker was replaced; no other plan can be made
                raise
            except Exception as error:
                failures.append(f"{progress.label}: {_reason(error, model, batch_size)}")
            else:
                remarks += [f"{progress.label}: {remark}" for remark in _remarks(schedule)]
            progress.finished()
        return RegistrationOutcome(tuple(failures), tuple(remarks))


async def serve_again(
    model: ModelVersion, services: JobServices, devices: Sequence[ServingDevice] | None = None
) -> None:
    """Let an imported model answer with its stored schedules, after a restart of the server.

    Args:
        model: imported before.
        services: of the server.
        devices: that were away when it was registered; None: all.

    Raises:
        BraidError: the artefact, or each of the devices, refuses.
    """
    devices = services.devices if devices is None else devices
    async with services.keeping(model.sha256):
        await services.files.fetch_artefact(model.sha256)
        imported = await _read(model, services)
        retry = services.retry()
        refusals = await _serve_on(devices, imported, services, lambda device: retry)
        for name, error in refusals.items():
            facts = {"model": model.name, "device": name, "reason": str(error)}
            log.error("not served", extra=facts)
        for device, batch_size in _work(imported, services):
            if device in devices and device.name not in refusals:
                await _use_stored(imported, device, batch_size, services, retry)


async def _import(
    model: ModelVersion, services: JobServices, report: ReportProgress
) -> ImportedModel:
    """Make the artefact, unless a sound one exists; the job is queued until the import begins."""
    folder = services.store.folder
    retry = services.retry(lambda what: _report_import(report, 0.0, what))
    async with services.import_turns.of(model.sha256):
        await retry(lambda: _fetch(model, services))
        if not await retry(lambda: asyncio.to_thread(_is_sound, folder, model.sha256)):
            for device in services.devices:
                device.bench.wake()

            def on_progress(fraction: float, step: str) -> None:
                _report_import(report, IMPORT_ENDS * min(1.0, max(0.0, fraction)), step)

            await retry(
                lambda: services.import_model(
                    folder.upload(model.sha256),
                    folder.artefact(model.sha256),
                    on_progress,
                    dict(model.options.input_shapes) or None,
                ),
                most_tries=IMPORT_TRIES,
            )
        await retry(lambda: services.files.keep_artefact(model.sha256))
    await services.store.call(services.store.discard_upload, model.sha256, is_imported=True)
    return await _read(model, services)


async def _fetch(model: ModelVersion, services: JobServices) -> None:
    """Bring the artefact of a model into the folder, else the upload that it is made from."""
    files, folder = services.files, services.store.folder
    try:
        await files.fetch_artefact(model.sha256)
    except DamagedArtefact:
        await files.fetch_upload(model.sha256)
        if not folder.upload(model.sha256).is_file():
            raise
    else:
        if not folder.has_artefact(model.sha256):
            await files.fetch_upload(model.sha256)


def _report_import(report: ReportProgress, progress: float, detail: str) -> None:
    report(ProgressReport(JobStatus.IMPORTING, progress, detail))


async def _read(model: ModelVersion, services: JobServices) -> ImportedModel:
    artefact = services.store.folder.artefact(model.sha256)
    return await services.retry()(lambda: asyncio.to_thread(read_imported, model, artefact))


def _is_sound(folder: StoreFolder, sha256: str) -> bool:
    """True if an import is done and nothing of it was lost; removes a damaged artefact.

    Raises:
        DamagedArtefact: it is damaged or gone, and there is no upload to make another from.
        SystemShortage: it cannot be looked at for now.
    """
    try:
        check_files(folder.artefact(sha256), sha256)
    except InvalidArtefact as error:
        if not folder.upload(sha256).is_file():
            raise DamagedArtefact(str(error)) from error
        if folder.has_artefact(sha256):
            log.warning("a damaged artefact is imported again", extra={"reason": str(error)})
        folder.remove_artefact(sha256)
        return False
    return True


async def _serve_sequentially(
    imported: ImportedModel, services: JobServices, report: ReportProgress
) -> dict[str, BraidError]:
    """Serve a model on every device; returns the errors of those that cannot, by device name.

    Raises:
        BraidError: none can.
    """
    model, store = imported.model, services.store

    def retry(device: ServingDevice) -> RetryWhileRestarting:
        loading = f"loading on {device.name}"
        _report_import(report, IMPORT_ENDS, loading)
        return services.retry(
            lambda what: _report_import(report, IMPORT_ENDS, f"{loading}: {what}")
        )

    async with services.load_turn:
        refusals = await _serve_on(services.devices, imported, services, retry)
        serving = replace(model, state=ModelStatus.SERVING, message="")
        keep = partial(services.files.keep_artefact, model.sha256)
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
    imported: ImportedModel,
    services: JobServices,
    retry: Callable[[ServingDevice], RetryWhileRestarting],
) -> dict[str, BraidError]:
    """Load a model on devices and let it answer there; returns errors by device name.

    Raises:
        BraidError: all of them refuse.
    """
    refusals: dict[str, BraidError] = {}

    async def attempt(device: ServingDevice) -> None:
        await device.load(imported.digest, imported.artefact)
        await services.models.serve(imported, device.name)

    for device in devices:
        try:
            await retry(device)(partial(attempt, device))
        except BraidError as error:
            refusals[device.name] = error
            if len(refusals) == len(devices):
                raise
    return refusals


async def _schedule(
    imported: ImportedModel,
    device: ServingDevice,
    batch_size: int,
    services: JobServices,
    progress: BatchSizeProgress,
) -> Schedule:
    """Find or make the schedule of one batch size on one device, and let it serve."""
    # Other devices may have come since the registration, with a restart.
    check_offered(imported.model.options.precision, [device])
    retry = services.retry(progress.retrying)
    stored = await _use_stored(imported, device, batch_size, services, retry)
    if stored is not None and not stored.is_asked:
        return stored
    key = imported.schedule_key(device.device_key, batch_size)
    async with services.making_schedule(key.id, progress.waiting_for_node) as owned:
        if owned is not services:  # another server may have made it meanwhile
            stored = await _use_stored(imported, device, batch_size, owned, retry)
            if stored is not None and not stored.is_asked:
                return stored
        return await _make(imported, device, batch_size, owned, progress, stored)


async def _make(
    imported: ImportedModel,
    device: ServingDevice,
    batch_size: int,
    services: JobServices,
    progress: BatchSizeProgress,
    before: Schedule | None,
) -> Schedule:
    """Make and store the schedule of one batch size on one device, and let it serve.

    ``before`` serves meanwhile, and on if nothing could be decided now.
    """
    turn = services.device_turns.of(device.name)
    if turn.locked():
        progress.waiting()
    async with turn:
        progress.begun()
        began = monotonic()
        made, graph = await make_schedule(imported, device, batch_size, services, progress)
    wrong = sum(contender.erred for contender in made.provenance.candidates)
    services.observer.plans_refused(device.name, wrong)
    schedule = better_founded(before, made, monotonic() - began)
    is_new = schedule.unit_names == made.unit_names
    await services.store.call(services.store.put_schedule, schedule, graph if is_new else None)
    await promote(imported.model, device, schedule, services, services.retry(progress.retrying))
    return schedule


async def _use_stored(
    imported: ImportedModel,
    device: ServingDevice,
    batch_size: int,
    services: JobServices,
    retry: RetryWhileRestarting,
) -> Schedule | None:
    """Let the stored schedule serve, if there is one that fits."""
    key = imported.schedule_key(device.device_key, batch_size)
    schedule = await services.store.call(services.store.find_schedule, key.id)
    if schedule is not None:
        try:
            await promote(imported.model, device, schedule, services, retry)
            services.registry.found(imported.model, device.name, schedule)
        except InvalidArtefact as error:
            log.warning("unfit schedule", extra={"schedule_id": key.id, "reason": str(error)})
            await services.store.call(services.store.forget_schedule, key.id)
            schedule = None
    services.observer.schedule_looked_up(schedule is not None)
    return schedule


async def promote(
    model: ModelVersion,
    device: ServingDevice,
    schedule: Schedule,
    services: JobServices,
    retry: RetryWhileRestarting,
) -> None:
    """Let a promoted schedule serve, then tell the observers."""
    if schedule.provenance.promoted:
        await retry(lambda: services.models.swap(model, device.name, schedule))
    else:
        services.models.expect_sequential(model, device.name, schedule)
    for on_schedule in services.on_schedule:
        on_schedule(model, device.name, schedule)


def _work(imported: ImportedModel, services: JobServices) -> Iterator[tuple[ServingDevice, int]]:
    """All pairs of a device and a batch size that have a schedule."""
    if imported.has_strings:
        return
    for device in services.devices:
        for batch_size in imported.batch_sizes:
            yield device, batch_size


def _label(device: ServingDevice, batch_size: int, services: JobServices) -> str:
    return batch_size_label(batch_size, device.name if len(services.devices) > 1 else "")


def _reason(error: Exception, model: ModelVersion, batch_size: int) -> str:
    """Text why a batch size has no schedule, for the owner of the model; logs internal errors."""
    if isinstance(error, BraidError):
        return str(error)
    facts = {"model": model.name, "size": batch_size}
    log.error("scheduling failed", exc_info=error, extra=facts)
    return "internal error; the server's log has the details"


def _remarks(schedule: Schedule) -> list[str]:
    """Texts for the owner of a model: why a plan does not serve."""
    seen = schedule.provenance
    if seen.provisional is not None:
        serves = "the sequential plan" if schedule.serves_sequentially else schedule.planner
        return [f"{serves} serves; {seen.provisional.text}"]
    if not seen.promoted:
        return [seen.reason]
    return [f"{wrong.name} is refused: {wrong.remark}" for wrong in seen.candidates if wrong.erred]
