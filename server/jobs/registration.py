"""What a registration job does, from the uploaded file to a schedule for every batch size.

    upload ──import──> artefact ──load──> device ──serve──> sequential plan answers
        for each batch size:  cached? ──yes──────────────────────────────────> swap
                              └─no─> profile ─> search ─> verify ─> promoted? ─┘

Every step can be done twice: a job cut off by a crash begins again at the top, and finds the
artefact, the measurements and the schedules that were made before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from braid.core.errors import BraidError, DamagedArtefact, DiskFailure, InvalidArtefact
from braid.core.schedule import Schedule
from braid.engine.importer.host.report import check_files
from braid.server.jobs.interfaces import Device, Specs
from braid.server.jobs.progress import IMPORT_ENDS, LOAD_ENDS, Forecast, Share, Tell
from braid.server.jobs.retries import Retry
from braid.server.jobs.scheduling.one_schedule import make_schedule
from braid.server.jobs.services import (
    Imported,
    Workshop,
    check_offered,
    profiled,
    read_imported,
    schedule_key,
)
from braid.server.store.files import StoreFolder
from braid.server.store.records import JobState, ModelState, ModelVersion

log = logging.getLogger("braid.jobs")

IMPORT_TRIES = 8
"""Tries of an importer that is killed within its limits, with half a minute of pauses in all.

Fewer than of a call that measures: each may use up the machine's memory.
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a registration went whose model serves."""

    failures: tuple[str, ...] = ()  # batch sizes without a schedule, and why
    remarks: tuple[str, ...] = ()  # plans that do not serve, and why


async def register_model(model: ModelVersion, shop: Workshop, tell: Tell) -> Outcome:
    """Take a model version from its upload to a schedule for every batch size and device.

    A batch size that fails leaves the model serving sequentially and does not stop the others,
    nor does a device that cannot serve the model.

    Raises:
        BraidError: the model does not serve; the message is for the user.
    """
    async with shop.keeping(model.sha256):
        return await _register(model, shop, tell)


async def _register(model: ModelVersion, shop: Workshop, tell: Tell) -> Outcome:
    await _import(model, shop, tell)
    async with shop.load_turn:
        refusals = await _serve(model, shop, tell)
    imported = await read_imported(model, shop)
    work = [each for each in _work(model, imported, shop) if each[0].name not in refusals]
    forecast = Forecast([size for _, size in work], model.options.planner.time_budget_s)
    failures = [f"{name} does not serve it: {error}" for name, error in refusals.items()]
    remarks = []
    for device, batch_size in work:
        share = Share(tell, _label(device, batch_size, shop), forecast)
        try:
            schedule = await _schedule(model, imported, device, batch_size, shop, share)
        except DiskFailure as error:  # nothing that follows could be stored either
            failures.append(f"{share.label} and later: {error}")
            break
        except DamagedArtefact:  # lost while a worker was replaced; no other plan can be made
            raise
        except BraidError as error:
            failures.append(f"{share.label}: {error}")
        except Exception:
            log.exception("scheduling failed", extra={"model": model.name, "size": batch_size})
            failures.append(f"{share.label}: internal error; the server's log has the details")
        else:
            remarks += [f"{share.label}: {remark}" for remark in _remarks(schedule)]
        share.finished()
    return Outcome(tuple(failures), tuple(remarks))


def _remarks(schedule: Schedule) -> list[str]:
    """What the owner of a model should know of a schedule."""
    seen = schedule.provenance
    if not seen.promoted:
        return [seen.reason]
    return [f"{wrong.name} is refused: {wrong.remark}" for wrong in seen.candidates if wrong.erred]


async def serve_again(
    model: ModelVersion, shop: Workshop, devices: Sequence[Device] | None = None
) -> None:
    """Let an imported model answer with the schedules found in the cache: after a restart on all
    devices, or on those that were away when it was registered.

    Raises:
        BraidError: the artefact, or each of the devices, refuses.
    """
    async with shop.keeping(model.sha256):
        await _serve_again(model, shop, shop.devices if devices is None else devices)


async def _serve_again(model: ModelVersion, shop: Workshop, devices: Sequence[Device]) -> None:
    refusals: dict[str, BraidError] = {}
    retry = Retry(shop.retry_pauses, lambda what: None)
    for device in devices:
        await _serve_on(device, model, shop, refusals, len(devices), retry)
    for name, error in refusals.items():
        log.error("not served", extra={"model": model.name, "device": name, "reason": str(error)})
    imported = await read_imported(model, shop)
    for device, batch_size in _work(model, imported, shop):
        if device in devices and device.name not in refusals:
            inputs = profiled(model, imported, batch_size)
            await _use_cached(model, imported, device, inputs, batch_size, shop, retry)


async def _import(model: ModelVersion, shop: Workshop, tell: Tell) -> None:
    """Make the artefact, unless a sound one exists; the job is queued until the import begins."""
    folder = shop.store.folder
    async with shop.digest_turn(model.sha256):
        if not await asyncio.to_thread(_is_sound, folder, model.sha256):
            for device in shop.devices:
                device.bench.wake()

            def on_progress(fraction: float, step: str) -> None:
                tell(JobState.IMPORTING, IMPORT_ENDS * min(1.0, max(0.0, fraction)), step)

            retry = Retry(shop.retry_pauses, partial(on_progress, 0.0))
            await retry(
                lambda: shop.import_model(
                    folder.upload(model.sha256),
                    folder.artefact(model.sha256),
                    on_progress=on_progress,
                    example_shapes=dict(model.options.input_shapes) or None,
                ),
                most_tries=IMPORT_TRIES,
            )
    await shop.store.call(shop.store.discard_upload, model.sha256, is_imported=True)


def _is_sound(folder: StoreFolder, sha256: str) -> bool:
    """Whether an import is done and nothing of it was lost; removes a damaged artefact.

    Raises:
        DamagedArtefact: it is damaged or gone, and there is no upload to make another from.
    """
    try:
        check_files(folder.artefact(sha256))
    except InvalidArtefact as error:
        if not folder.upload(sha256).is_file():
            raise DamagedArtefact(str(error)) from error
        if folder.has_artefact(sha256):
            log.warning("a damaged artefact is imported again", extra={"reason": str(error)})
        folder.remove_artefact(sha256)
        return False
    return True


async def _serve(model: ModelVersion, shop: Workshop, tell: Tell) -> dict[str, BraidError]:
    """Serve a model sequentially on every device; those that cannot, and why.

    Raises:
        BraidError: none can.
    """
    refusals: dict[str, BraidError] = {}
    for device in shop.devices:
        loading = f"loading on {device.name}"
        tell(JobState.IMPORTING, IMPORT_ENDS, loading)
        retry = Retry(shop.retry_pauses, partial(_tell_loading, tell, loading))
        await _serve_on(device, model, shop, refusals, len(shop.devices), retry)
    serving = replace(model, state=ModelState.SERVING, message="")
    try:
        await shop.store.call(
            shop.store.set_model_state, model.name, model.version, serving.state, serving.message
        )
    except DiskFailure as error:
        if model.state is not ModelState.SERVING:  # a model that FAILED must not go on answering
            failed = replace(model, state=ModelState.FAILED, message=str(error))
            await shop.catalogue.unload(failed)
        raise
    shop.catalogue.register(serving)
    tell(JobState.IMPORTING, LOAD_ENDS, "serving with the sequential plan")
    return refusals


def _tell_loading(tell: Tell, loading: str, what: str) -> None:
    tell(JobState.IMPORTING, IMPORT_ENDS, f"{loading}: {what}")


async def _serve_on(
    device: Device,
    model: ModelVersion,
    shop: Workshop,
    refusals: dict[str, BraidError],
    devices: int,
    retry: Retry,
) -> None:
    """Load a model on a device and let it answer there; not all ``devices`` may refuse."""

    async def attempt() -> None:
        await device.load(model.sha256, shop.store.folder.artefact(model.sha256))
        await shop.catalogue.serve(model, device.name)

    try:
        await retry(attempt)
    except BraidError as error:
        refusals[device.name] = error
        if len(refusals) == devices:
            raise


async def _schedule(
    model: ModelVersion,
    imported: Imported,
    device: Device,
    batch_size: int,
    shop: Workshop,
    share: Share,
) -> Schedule:
    """Find or make the schedule of one batch size on one device, and let it serve."""
    check_offered(model.options.precision, [device])  # other devices may be here since a restart
    inputs = profiled(model, imported, batch_size)
    retry = Retry(shop.retry_pauses, share.retrying)
    cached = await _use_cached(model, imported, device, inputs, batch_size, shop, retry)
    if cached is not None:
        return cached
    turn = shop.device_turns[device.name]
    if turn.locked():
        share.waiting()
    async with turn:
        share.begun()
        schedule = await make_schedule(model, imported, device, inputs, batch_size, shop, share)
    wrong = sum(contender.erred for contender in schedule.provenance.candidates)
    shop.observer.plans_refused(device.name, wrong)
    await shop.store.call(shop.store.put_schedule, schedule)
    await _promote(model, device, inputs, schedule, shop, retry)
    return schedule


async def _use_cached(
    model: ModelVersion,
    imported: Imported,
    device: Device,
    inputs: Specs,
    batch_size: int,
    shop: Workshop,
    retry: Retry,
) -> Schedule | None:
    """Let the schedule of the cache serve, if there is one that fits."""
    key = schedule_key(model, imported, device.device_key, inputs, batch_size)
    schedule = await shop.store.call(shop.store.find_schedule, key.id)
    if schedule is not None:
        try:
            await _promote(model, device, inputs, schedule, shop, retry)
        except InvalidArtefact as error:
            log.warning("unfit schedule", extra={"schedule_id": key.id, "reason": str(error)})
            await shop.store.call(shop.store.forget_schedule, key.id)
            schedule = None
    shop.observer.schedule_looked_up(schedule is not None)
    return schedule


async def _promote(
    model: ModelVersion,
    device: Device,
    inputs: Specs,
    schedule: Schedule,
    shop: Workshop,
    retry: Retry,
) -> None:
    """Let a schedule serve if it may, and show it in the metrics."""
    if schedule.provenance.promoted:
        await retry(lambda: shop.catalogue.swap(model, device.name, inputs, schedule))
    shop.observer.schedule_chosen(model, device.name, schedule)


def _work(model: ModelVersion, imported: Imported, shop: Workshop) -> Iterator[tuple[Device, int]]:
    """Every device with every batch size; a model that takes one row only has one."""
    batch = imported.report.batch
    sizes = (1,) if batch is None or batch.alone else model.options.batch_sizes
    for device in shop.devices:
        for batch_size in sizes:
            yield device, batch_size


def _label(device: Device, batch_size: int, shop: Workshop) -> str:
    where = f" on {device.name}" if len(shop.devices) > 1 else ""
    return f"batch size {batch_size}{where}"
