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
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from time import monotonic
from typing import TypeVar

from core.errors import BraidError, InvalidArtefact, InvalidRequest, Unavailable
from core.graph import OpGraph
from core.plan import verify_plan
from core.schedule import Provenance, Schedule, ScheduleKey, Stage
from core.tensor import BATCH, TensorSpec
from engine.importer.report import Report, read_graph, read_report
from scheduler.signature import stage_signature
from scheduler.units import UnitGraph
from server.jobs.ports import (
    Catalogue,
    Device,
    ImportModel,
    JobObserver,
    PlanComparison,
    PlannedModel,
    Planner,
    Specs,
    StageQuery,
)
from server.jobs.progress import IMPORT_ENDS, LOAD_ENDS, MeasuringRate, Share, Tell
from server.profiled import profiled_inputs
from server.store.plans import Measurement
from server.store.records import JobState, ModelState, ModelVersion
from server.store.store import Store

log = logging.getLogger("braid.jobs")

T = TypeVar("T")

RETRY_PAUSES_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""While a device worker restarts. A stage that kills the worker each time ends the attempts."""

NOISE_MARGIN = 0.01
"""A plan up to this much slower, and not by more than the runs scatter, is as fast.

Two medians of one series never agree exactly, and a plan equal to the sequential one would be
refused half of the time. The margin stays below what anyone could see in a served latency.
"""


@dataclass(frozen=True, slots=True)
class Workshop:
    """What registrations work with. One for all jobs of a server."""

    store: Store
    import_model: ImportModel
    devices: Sequence[Device]
    planner: Planner
    catalogue: Catalogue
    observer: JobObserver
    tolerance: float  # of outputs against the sequential plan, relative to the largest element
    import_turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    # Measuring needs the device for itself; held for one batch size, so jobs take turns.
    device_turns: Mapping[str, asyncio.Lock] = field(
        default_factory=lambda: defaultdict(asyncio.Lock)
    )


@dataclass(frozen=True, slots=True)
class Imported:
    """What the front end knows of an artefact."""

    inputs: Mapping[str, TensorSpec]  # of the template: the batch and open extents are symbols
    report: Report


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a registration went whose model serves."""

    failures: tuple[str, ...] = ()  # batch sizes without a schedule, and why
    remarks: tuple[str, ...] = ()  # batch sizes that the sequential plan goes on serving, and why


async def register_model(model: ModelVersion, shop: Workshop, tell: Tell) -> Outcome:
    """Take a model version from its upload to a schedule for every batch size and device.

    A batch size that fails leaves the model serving sequentially and does not stop the others.

    Raises:
        BraidError: the model does not serve; the message is for the user.
    """
    async with shop.import_turn:
        await _import(model, shop, tell)
        await _serve(model, shop, tell)
    imported = await _read(model, shop)
    work = list(_work(model, imported, shop))
    rate = MeasuringRate()
    failures, remarks = [], []
    for index, (device, batch_size) in enumerate(work):
        share = Share(tell, _label(device, batch_size, shop), index, len(work), rate)
        try:
            schedule = await _schedule(model, imported, device, batch_size, shop, share)
        except BraidError as error:
            failures.append(f"{share.label}: {error}")
        except Exception:
            log.exception("scheduling failed", extra={"model": model.name, "size": batch_size})
            failures.append(f"{share.label}: internal error; the server's log has the details")
        else:
            if not schedule.provenance.promoted:
                remarks.append(f"{share.label}: {schedule.provenance.reason}")
        share.finished()
    return Outcome(tuple(failures), tuple(remarks))


async def serve_again(model: ModelVersion, shop: Workshop) -> None:
    """After a restart: let an imported model answer, with the schedules found in the cache.

    Raises:
        BraidError: the artefact or the device refuses.
    """
    for device in shop.devices:
        await device.load(model.sha256, shop.store.folder.artefact(model.sha256))
    await shop.catalogue.serve(model)
    imported = await _read(model, shop)
    for device, batch_size in _work(model, imported, shop):
        inputs = _inputs(model, imported, batch_size)
        await _use_cached(model, imported, device, inputs, batch_size, shop)


async def _import(model: ModelVersion, shop: Workshop, tell: Tell) -> None:
    """Make the artefact, unless there is one."""
    tell(JobState.IMPORTING, 0.0, "importing")
    folder = shop.store.folder
    if not folder.has_artefact(model.sha256):
        await shop.import_model(
            folder.upload(model.sha256),
            folder.artefact(model.sha256),
            on_progress=lambda fraction, step: tell(
                JobState.IMPORTING, IMPORT_ENDS * min(1.0, max(0.0, fraction)), step
            ),
            example_shapes=dict(model.options.input_shapes) or None,
        )
    await shop.store.call(shop.store.discard_upload, model.sha256)


async def _serve(model: ModelVersion, shop: Workshop, tell: Tell) -> None:
    """Load the artefact on every device and serve it with the sequential plan."""
    artefact = shop.store.folder.artefact(model.sha256)
    for device in shop.devices:
        tell(JobState.IMPORTING, IMPORT_ENDS, f"loading on {device.name}")
        await _patiently(partial(device.load, model.sha256, artefact))
    await _patiently(lambda: shop.catalogue.serve(model))
    serving = replace(model, state=ModelState.SERVING, message="")
    await shop.store.call(
        shop.store.set_model_state, model.name, model.version, serving.state, serving.message
    )
    shop.catalogue.register(serving)
    tell(JobState.IMPORTING, LOAD_ENDS, "serving with the sequential plan")


async def _schedule(
    model: ModelVersion,
    imported: Imported,
    device: Device,
    batch_size: int,
    shop: Workshop,
    share: Share,
) -> Schedule:
    """Find or make the schedule of one batch size on one device, and let it serve."""
    inputs = _inputs(model, imported, batch_size)
    cached = await _use_cached(model, imported, device, inputs, batch_size, shop)
    if cached is not None:
        return cached
    turn = shop.device_turns[device.name]
    if turn.locked():
        share.waiting()
    async with turn:
        schedule = await _plan(model, imported, device, inputs, batch_size, shop, share)
    await shop.store.call(shop.store.put_schedule, schedule)
    await _promote(model, device, inputs, schedule, shop)
    return schedule


async def _use_cached(
    model: ModelVersion,
    imported: Imported,
    device: Device,
    inputs: Specs,
    batch_size: int,
    shop: Workshop,
) -> Schedule | None:
    """Let the schedule of the cache serve, if there is one that fits."""
    key = schedule_key(model, imported, device.device_key, inputs, batch_size)
    schedule = await shop.store.call(shop.store.find_schedule, key.id)
    if schedule is not None:
        try:
            await _promote(model, device, inputs, schedule, shop)
        except InvalidArtefact as error:
            log.warning("unfit schedule", extra={"schedule_id": key.id, "reason": str(error)})
            await shop.store.call(shop.store.forget_schedule, key.id)
            schedule = None
    shop.observer.schedule_looked_up(schedule is not None)
    return schedule


async def _plan(
    model: ModelVersion,
    imported: Imported,
    device: Device,
    inputs: Specs,
    batch_size: int,
    shop: Workshop,
    share: Share,
) -> Schedule:
    """Profile, search and verify: the schedule, promoted or not."""
    digest, options = model.sha256, model.options.planner
    graph = await _patiently(lambda: device.static_graph(digest, batch_size, inputs))
    timer = StageMeasurer(digest, batch_size, device, shop, share)
    planned = await shop.planner(graph, options, timer.measure)
    verify_plan(planned.plan, graph.predecessors())
    share.verifying(timer.measured + timer.reused)
    compared = await _patiently(lambda: device.compare(digest, batch_size, planned.plan))
    reason = refusal(planned, compared, shop.tolerance)
    return Schedule(
        key=schedule_key(model, imported, device.device_key, inputs, batch_size),
        planner=planned.planner,
        plan=planned.plan,
        stages=planned.stages,
        unit_names=tuple(operator.name for operator in graph.operators),
        provenance=Provenance(
            predicted_us=planned.predicted_us,
            measured_us=compared.measured_us,
            sequential_us=compared.sequential_us,
            spread=compared.spread,
            stages_measured=timer.measured,
            stages_reused=timer.reused,
            search_seconds=planned.search_seconds,
            gap=planned.gap,
            max_abs_error=compared.max_abs_error,
            max_rel_error=compared.max_rel_error,
            tolerance=shop.tolerance,
            promoted=not reason,
            reason=reason,
            software=device.software,
            unit_us=await _unit_latencies(graph, device, shop),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        ),
    )


async def _unit_latencies(graph: OpGraph, device: Device, shop: Workshop) -> dict[str, float]:
    """What is known of each unit alone, by name; for those who look at the schedule later."""

    def signatures() -> dict[str, str]:
        units = UnitGraph.from_graph(graph)
        return {
            operator.name: stage_signature(units, Stage(((index,),)))
            for index, operator in enumerate(graph.operators)
        }

    named = await asyncio.to_thread(signatures)
    wanted = list(set(named.values()))
    known = await shop.store.call(shop.store.find_latencies, device.device_key, wanted)
    return {name: known[mark] for name, mark in named.items() if mark in known}


def refusal(planned: PlannedModel, compared: PlanComparison, tolerance: float) -> str:
    """Why a plan may not serve; empty if it may.

    It serves if its outputs agree with the sequential ones, and it is not slower. A plan on one
    stream is the sequential plan: there is nothing to be slower than.
    """
    if not compared.max_rel_error <= tolerance:  # also refuses NaN
        return (
            f"the sequential plan goes on serving: outputs differ by {compared.max_rel_error:.2g} "
            f"of the largest element, {tolerance:.2g} is allowed"
        )
    margin = 1.0 + min(NOISE_MARGIN, compared.spread)
    if planned.plan.streams > 1 and not compared.measured_us <= compared.sequential_us * margin:
        return (
            "the sequential plan goes on serving: the schedule takes "
            f"{compared.measured_us:.0f} us, the sequential plan {compared.sequential_us:.0f} us"
        )
    return ""


async def _promote(
    model: ModelVersion, device: Device, inputs: Specs, schedule: Schedule, shop: Workshop
) -> None:
    """Let a schedule serve if it may, and show it in the metrics."""
    if schedule.provenance.promoted:
        await _patiently(lambda: shop.catalogue.swap(model, device.name, inputs, schedule))
    shop.observer.schedule_chosen(
        model.name,
        model.version,
        device.name,
        schedule.key.batch_size,
        measured_us=schedule.provenance.measured_us,
        sequential_us=schedule.provenance.sequential_us,
        promoted=schedule.provenance.promoted,
    )


class StageMeasurer:
    """Answers the planner's questions: from the store, else by measuring, one stage at a time.

    A new latency is stored before the next stage is measured, so none is ever measured twice,
    by any job, whatever ends this one.
    """

    def __init__(
        self, digest: str, batch_size: int, device: Device, shop: Workshop, share: Share
    ) -> None:
        self._digest = digest
        self._batch_size = batch_size
        self._device = device
        self._store = shop.store
        self._observer = shop.observer
        self._share = share
        self.measured = 0
        self.reused = 0

    async def measure(self, queries: Sequence[StageQuery]) -> Sequence[float]:
        """Latencies in microseconds, in the order of the queries."""
        names = [query.signature for query in queries]
        key = self._device.device_key
        known = await self._store.call(self._store.find_latencies, key, names)
        missing = [query for query in queries if query.signature not in known]
        self.reused += len(queries) - len(missing)
        self._observer.stages_reused(self._device.name, len(queries) - len(missing))
        for done, query in enumerate(missing):
            self._share.profiling(len(queries) - len(missing) + done, len(queries))
            known[query.signature] = await self._measure(query)
        self._share.scheduling(self.measured + self.reused)
        return [known[name] for name in names]

    async def _measure(self, query: StageQuery) -> float:
        began = monotonic()
        timing = await _patiently(
            lambda: self._device.measure_stage(self._digest, self._batch_size, query.stage)
        )
        measurement = Measurement(
            self._device.device_key,
            query.signature,
            timing.latency_us,
            timing.spread,
            timing.repeats,
        )
        await self._store.call(self._store.put_measurement, measurement)
        seconds = monotonic() - began
        self.measured += 1
        self._share.rate.add(seconds)
        self._observer.stage_measured(self._device.name, seconds)
        return timing.latency_us


async def _patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Call again while the device worker restarts."""
    for pause in RETRY_PAUSES_S:
        try:
            return await call()
        except Unavailable as error:
            log.info("waiting for the device", extra={"reason": str(error)})
            await asyncio.sleep(pause)
    return await call()


async def _read(model: ModelVersion, shop: Workshop) -> Imported:
    artefact = shop.store.folder.artefact(model.sha256)
    graph = await asyncio.to_thread(read_graph, artefact)
    return Imported(graph.inputs, await asyncio.to_thread(read_report, artefact))


def _work(model: ModelVersion, imported: Imported, shop: Workshop) -> Iterator[tuple[Device, int]]:
    """Every device with every batch size; a model without a batch has one."""
    sizes = model.options.batch_sizes if imported.report.batch is not None else (1,)
    for device in shop.devices:
        for batch_size in sizes:
            yield device, batch_size


def _label(device: Device, batch_size: int, shop: Workshop) -> str:
    where = f" on {device.name}" if len(shop.devices) > 1 else ""
    return f"batch size {batch_size}{where}"


def _inputs(model: ModelVersion, imported: Imported, batch_size: int) -> Specs:
    return profiled_inputs(imported.inputs, imported.report, model.options.input_shapes, batch_size)


def schedule_key(
    model: ModelVersion, imported: Imported, device_key: str, inputs: Specs, batch_size: int
) -> ScheduleKey:
    """The key of a model's schedule for static ``inputs``.

    Raises:
        InvalidRequest: two inputs give one symbol different extents.
    """
    extents: dict[str, int] = {}
    for name, template in imported.inputs.items():
        for symbol, extent in zip(template.shape, inputs[name].shape, strict=True):
            if isinstance(symbol, str) and symbol != BATCH:
                assert isinstance(extent, int)
                if extents.setdefault(symbol, extent) != extent:
                    raise InvalidRequest(
                        f"input_shapes gives {symbol!r} as {extents[symbol]} and as {extent}"
                    )
    return ScheduleKey(
        model_digest=model.sha256,
        device_key=device_key,
        batch_size=batch_size,
        planner=model.options.planner.text,
        shapes=",".join(f"{symbol}={extents[symbol]}" for symbol in sorted(extents)),
    )
