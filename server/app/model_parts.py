"""Parts of a server that know models by name, put together.

runner (jobs) ──a version serves──> policies ──> serving <── loader, restore
   ▲                                                └──> queries
model repository ──> sync ──> policies, serving, and the runner for files placed
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from braid.compiler.planner import PlannerProcess
from braid.core.background import BackgroundTasks
from braid.core.schedule import Schedule
from braid.engine.importer.host.launch import import_model
from braid.server.devices.pool import Devices
from braid.server.inference.replica import ModelReplica
from braid.server.jobs.imports import Imports
from braid.server.jobs.interfaces import OnSchedule
from braid.server.jobs.registry import Registry
from braid.server.jobs.runner import JobRunner
from braid.server.jobs.services import JobServices
from braid.server.limits import batch_policy, store_database
from braid.server.models.idle_pairs import IdlePairs
from braid.server.models.loading import ModelLoader
from braid.server.models.padding_checks import PaddingChecks
from braid.server.models.policies import VersionPolicies
from braid.server.models.queries import ModelQueries
from braid.server.models.residency import Residency
from braid.server.models.restore import Restore
from braid.server.models.serving_models import ServingModels
from braid.server.observability.metrics import Metrics
from braid.server.repository.model_sync import ModelSync
from braid.server.repository.placing import Placing
from braid.server.repository.repository import ModelRepository
from braid.server.settings import Settings
from braid.server.store.records import ModelVersion
from braid.server.store.shared_files import Files
from braid.server.store.store import Store

IDLE_S = 600.0
"""Time without a request after which a model on demand leaves memory."""

LOAD_WAIT_S = 60.0
"""Longest wait of a request for a model that is not in memory."""

if TYPE_CHECKING:
    from braid.server.fleet.fleet import Fleet


@dataclass(frozen=True, slots=True)
class MadeFrom:
    """Parts that the model parts are made from."""

    settings: Settings
    store: Store
    metrics: Metrics
    fleet: Fleet | None  # None: this server is alone
    files: Files
    devices: Devices


@dataclass(frozen=True, slots=True)
class ModelParts:
    """Parts of the server that know models by name."""

    serving: ServingModels
    runner: JobRunner
    loader: ModelLoader
    policies: VersionPolicies
    queries: ModelQueries
    restore: Restore
    padding: PaddingChecks
    pairs: IdlePairs
    residency: Residency


def make_model_parts(made_from: MadeFrom, on_change: Callable[[str], None]) -> ModelParts:
    """Put the parts together; ``on_change`` is told when a model begins or ends to answer."""
    settings, store, fleet = made_from.settings, made_from.store, made_from.fleet
    metrics = made_from.metrics

    def version_serves(name: str, version: int) -> None:
        if fleet is None or runner.is_working_on(name, version):  # else it follows
            policies.version_serves(name)

    serving = ServingModels(
        *(made_from.devices, made_from.metrics, batch_policy(settings), on_change),
        version_serves,
    )

    residency = Residency(IDLE_S, serving, made_from.devices, store.folder.root)
    padding = PaddingChecks(
        serving.all_queued,
        lambda replica: metrics.find_model(replica.name, replica.version).on(replica.device.name),
        serving.quiet,
        store,
        settings.tolerance,
    )
    pairs = IdlePairs(
        serving.all_replicas, serving.quiet, lambda: serving.is_running or runner.has_jobs
    )
    services = _job_services(made_from, serving, residency)
    runner = JobRunner(services)
    serving.on_decided = partial(_keep_decision, services, BackgroundTasks("decided contests"))
    catch_up = None if fleet is None else fleet.catch_up
    restore = Restore(
        *(services, serving),
        is_shared=fleet is not None,
        wait_s=LOAD_WAIT_S,
        most_waiting=settings.max_queue_requests,
    )
    serving.bring = restore.bring
    limit = settings.max_upload_bytes
    loader = ModelLoader(store, runner, serving, limit, catch_up, restore.now)
    policies = VersionPolicies(store, serving, loader)
    queries = ModelQueries(store, made_from.files, serving, made_from.devices)
    database = store_database(settings)
    if fleet is not None and database is not None:
        fleet.follow(database, services, serving)
    return ModelParts(
        *(serving, runner, loader, policies, queries, restore),
        *(padding, pairs, residency),
    )


def _job_services(made_from: MadeFrom, serving: ServingModels, residency: Residency) -> JobServices:
    settings, metrics = made_from.settings, made_from.metrics
    devices, fleet = made_from.devices, made_from.fleet

    def of_main_shape(tell: OnSchedule) -> OnSchedule:
        """Series are of the main shape: they are told apart by batch size."""

        def told(model: ModelVersion, device: str, schedule: Schedule) -> None:
            if serving.is_main(model, schedule):
                tell(model, device, schedule)

        return told

    return JobServices(
        store=made_from.store,
        files=made_from.files,
        registry=Registry() if fleet is None else fleet.registry,
        import_model=Imports(import_model, settings.import_limits, settings.import_together_bytes),
        quiet=serving.quiet,
        devices=devices.all,
        planner=PlannerProcess(settings.planner_memory_bytes, settings.planner_search_seconds),
        models=serving,
        room=residency,
        observer=metrics.jobs,
        on_schedule=(of_main_shape(metrics.schedules.schedule_chosen),),
        tolerance=settings.tolerance,
        side_by_side=settings.side_by_side,
    )


def _keep_decision(
    services: JobServices, background: BackgroundTasks, replica: ModelReplica, schedule: Schedule
) -> None:
    """Store the order of candidates that requests have decided; a restart begins with it."""
    replica.chosen[schedule.key] = schedule
    background.start(services.store.call(services.store.put_schedule, schedule))
    for on_schedule in services.on_schedule:
        on_schedule(replica.model, replica.device.name, schedule)


def make_repository(
    made_from: MadeFrom, models: ModelParts, on_change: Callable[[], None]
) -> ModelRepository | None:
    """Return the model repository of the settings, or None.

    ``on_change`` is called when the models that are missing may have changed.
    """
    settings, store, files = made_from.settings, made_from.store, made_from.files
    if settings.model_repository is None:
        return None
    placing = Placing(store, files, models.runner, settings.max_upload_bytes)
    devices = [device.name for device in made_from.devices.all]
    sync = ModelSync(store, models.serving, models.policies, placing, devices)
    return ModelRepository(settings.model_repository, sync, models.serving, on_change)
