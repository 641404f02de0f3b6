"""The front end: puts everything together, and takes it apart again without losing a request.

    start:  store ─> device worker ─> gRPC and HTTP ports ─> models of the store serve ─> ready
    stop:   health says NOT_SERVING ─> new requests are refused, accepted ones end ─> jobs stop
            ─> worker ends ─> the process ends, and only with it its connections

This is the composition root: the only place that knows which class stands behind which Protocol.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from braid.core.background import BackgroundTasks, ends_before
from braid.core.errors import BraidError, DamagedArtefact, StartupError
from braid.engine.importer.host.launch import import_model
from braid.engine.importer.host.process import SpareImporter
from braid.engine.link.options import WorkerEnd
from braid.engine.runtime.allocator import keep_freed_memory
from braid.server.console.facts import Facts
from braid.server.console.sessions import Sessions
from braid.server.console.site import Console
from braid.server.devices.cores import leave_cores_to_devices, pinned_cores
from braid.server.devices.device import Device, DeviceEvents
from braid.server.devices.measuring.host import MakeMeasuringHost
from braid.server.devices.measuring.serving import measuring_host
from braid.server.devices.pool import Devices
from braid.server.inference.call_memory import CallMemory
from braid.server.inference.shared_regions import SharedRegions
from braid.server.jobs.imports import Imports
from braid.server.jobs.planner.driver import PlannerProcess
from braid.server.jobs.runner import JobRunner
from braid.server.jobs.services import JobServices
from braid.server.limits import (
    batch_policy,
    host_names,
    import_limits,
    memory_limits,
    store_limits,
)
from braid.server.models.loading import ModelLoader
from braid.server.models.policies import VersionPolicies
from braid.server.models.preload import check_models, preload
from braid.server.models.queries import ModelQueries
from braid.server.models.restore import Restore
from braid.server.models.serving_models import ServingModels
from braid.server.observability.build import build_facts
from braid.server.observability.drift import DriftWatch
from braid.server.observability.logs import configure_logging
from braid.server.observability.metrics import Metrics
from braid.server.observability.present import DevicePresent, Present
from braid.server.observability.series.plans import PlanLabels
from braid.server.observability.tracing import Sampling
from braid.server.observability.triton_metrics import TritonMetrics
from braid.server.ports.event_loop import event_loop_for
from braid.server.ports.grpc_port import MESSAGE_OVERHEAD_BYTES, GrpcPorts
from braid.server.ports.http.bodies import BodyRoom
from braid.server.ports.http.routes import health_routes, metrics_route
from braid.server.ports.http.server import HttpServer
from braid.server.ports.ready_line import ModelToTry, ready_facts
from braid.server.repository.model_sync import ModelSync
from braid.server.repository.placing import Placing
from braid.server.repository.repository import ModelRepository, check_repository
from braid.server.repository.watching import watch
from braid.server.rpc.status import Handler
from braid.server.servicers.admin import AdminServicer
from braid.server.servicers.health import Health
from braid.server.servicers.inference.braid_v1 import BraidV1
from braid.server.servicers.inference.service import TensorService
from braid.server.servicers.oip import wire as oip
from braid.server.servicers.oip.models import ModelMethods, ServerMethods
from braid.server.servicers.oip.repository import RepositoryMethods
from braid.server.servicers.oip.settings import LogLevels, TraceSettings
from braid.server.servicers.oip.shared_memory import SharedMemoryMethods
from braid.server.servicers.oip.tensors import OpenInference
from braid.server.servicers.rest.calls import Admission
from braid.server.servicers.rest.inference import RestInference
from braid.server.servicers.rest.routes import RestServices, rest_routes
from braid.server.servicers.uploads import ModelUploads
from braid.server.settings import Settings, shown_settings
from braid.server.store.store import Store
from braid.server.variables import unknown_variables
from braid_client.wire import admin_pb2, admin_pb2_grpc

log = logging.getLogger("braid.frontend")

SERVICES = (
    BraidV1.service,
    admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name,
    OpenInference.service,
)
LINGER_SECONDS = 0.2  # for the last answers to leave the process


@dataclass(frozen=True, slots=True)
class ModelRoom:
    """Parts of the server that know models by name."""

    serving: ServingModels
    runner: JobRunner
    loader: ModelLoader
    policies: VersionPolicies
    queries: ModelQueries
    restore: Restore


class FrontEnd:
    """One server process and everything it owns."""

    def __init__(self, settings: Settings, make_host: MakeMeasuringHost = measuring_host) -> None:
        """Start nothing yet; ``make_host`` decides where registrations measure on a device."""
        self.settings = settings
        self._background = BackgroundTasks()
        self._takes_requests = False
        self.grpc_port = self.http_port = 0
        self.store = Store.open(settings.store, store_limits(settings))
        self.health = Health(SERVICES)
        self.memory = CallMemory(memory_limits(settings))
        self.sampling = Sampling()
        self.metrics = _metrics(settings, self.memory)
        self.drift = DriftWatch(
            self.metrics.drift, settings.drift_ratio, settings.drift_seconds, self._plan_drifted
        )
        events = DeviceEvents(
            self._worker_changed, self._worker_ended, self.drift.ran, self._model_lost
        )
        self.devices = Devices(settings, events, make_host)
        self._spare_importer = SpareImporter()
        self.models = self._model_room()
        self._repository = self._model_repository()
        braid_v1 = TensorService(self.models.serving, self.memory, BraidV1()).methods()
        self._regions = SharedRegions(
            settings.system_shared_memory,
            settings.max_message_bytes,
            lambda owner: self._grpc.tokens.may_own(owner),
        )
        self._oip = self._open_inference()
        protocol = OpenInference(self._regions)
        inference = TensorService(self.models.serving, self.memory, protocol).methods(self._oip)
        self._inference = (braid_v1, inference)
        self._grpc = GrpcPorts(settings, self._add_services, self.sampling, self.memory)
        self._host_names = host_names(settings)
        self.metrics.present.watch(self._present, settings.store, settings.max_store_bytes)
        self._http = self._http_server()

    def _model_room(self) -> ModelRoom:
        settings, store, metrics = self.settings, self.store, self.metrics

        def version_serves(name: str) -> None:
            policies.version_serves(name)

        serving = ServingModels(
            self.devices, metrics, batch_policy(settings), self._model_answers, version_serves
        )
        limits, together_bytes = import_limits(settings), settings.import_together_bytes
        services = JobServices(
            store=store,
            import_model=Imports(
                partial(import_model, spare=self._spare_importer), limits, together_bytes
            ),
            prepare_job=self._prepare_job,
            quiet=serving.quiet,
            devices=self.devices.all,
            planner=PlannerProcess(settings.planner_memory_bytes, settings.planner_search_seconds),
            models=serving,
            observer=metrics.jobs,
            on_schedule=(metrics.schedules.schedule_chosen, self.drift.schedule_chosen),
            tolerance=settings.tolerance,
            side_by_side=settings.side_by_side,
        )
        runner = JobRunner(services)
        loader = ModelLoader(store, runner, serving, settings.max_upload_bytes)
        policies = VersionPolicies(store, serving, loader)
        queries = ModelQueries(store, serving, self.devices)
        restore = Restore(services, serving)
        return ModelRoom(serving, runner, loader, policies, queries, restore)

    def _model_repository(self) -> ModelRepository | None:
        settings, models, store = self.settings, self.models, self.store
        if settings.model_repository is None:
            return None
        placing = Placing(store, models.runner, settings.max_upload_bytes)
        devices = [device.name for device in self.devices.all]
        sync = ModelSync(store, models.serving, models.policies, placing, devices)
        return ModelRepository(
            settings.model_repository, sync, models.serving, self._reachability_changed
        )

    def _http_server(self) -> HttpServer:
        return HttpServer(
            [
                metrics_route(self.metrics.registry, self.metrics.present),
                *health_routes(lambda: self.health.is_ready),
                *rest_routes(self._rest()),
                *self._console().routes(),
            ],
            self._is_our_name,
        )

    def _is_our_name(self, host: str, in_protocol: bool) -> bool:
        """Bool: a ``Host`` is answered. Other sites' scripts have no token to call the protocol."""
        if in_protocol and self._grpc.tokens.are_required:
            return True
        return self._host_names.include(host)

    def _rest(self) -> RestServices:
        """Make the Open Inference Protocol over HTTP: the RPCs of gRPC, and the same gate."""
        grpc_port, certificates = self._grpc, self._grpc.certificates
        is_mutual = certificates is not None and certificates.are_mutual
        protocol = RestInference(self._regions)
        return RestServices(
            inference=TensorService(self.models.serving, self.memory, protocol),
            others=self._oip,
            admission=Admission(grpc_port.gate, grpc_port.telemetry, needs_certificate=is_mutual),
            room=BodyRoom(self.settings.calls_memory_bytes),
            body_bytes=self.settings.max_message_bytes + MESSAGE_OVERHEAD_BYTES,
        )

    def _console(self) -> Console:
        """Make the console: pages for readers, changes for callers with the admin token."""
        facts = Facts(
            self.models.queries,
            self.models.policies,
            self.models.runner,
            self.models.serving,
            self.metrics,
            self.devices,
            shown_settings(self.settings),
        )
        sessions = Sessions(self._grpc.tokens.is_admin)
        return Console(facts, sessions, is_tls=self.settings.tls_certificate is not None)

    def _open_inference(self) -> dict[str, Handler]:
        """Make the RPCs of the Open Inference Protocol beside inference, by name."""
        settings, models, regions = self.settings, self.models, self._regions
        sampling = None if settings.tracing == "off" else self.sampling
        device_names = [device.name for device in self.devices.all]
        return oip.handlers(
            ServerMethods(self.health, regions.is_offered),
            ModelMethods(models.serving, self.metrics),
            RepositoryMethods(models.loader, models.policies, device_names),
            SharedMemoryMethods(regions),
            LogLevels(),
            TraceSettings(sampling),
        )

    def _add_services(self, server: grpc.aio.Server) -> None:
        server.add_generic_rpc_handlers(self._inference)
        settings, models = self.settings, self.models
        uploads = ModelUploads(
            self.store,
            settings.max_upload_bytes,
            settings.upload_idle_seconds,
            settings.max_samples_bytes,
            self.metrics.jobs.upload_received,
        )
        admin = AdminServicer(
            uploads, models.runner, models.serving, models.queries, models.policies
        )
        admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health.servicer, server)
        reflection.enable_server_reflection(
            [
                *SERVICES,
                health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
                reflection.SERVICE_NAME,
            ],
            server,
        )

    async def start(self) -> None:
        """Start all parts; returns when requests are taken.

        Raises:
            StartupError: a port is taken, or no device can be used.
        """
        await self.devices.start()
        for device in self.devices.all:
            self.metrics.add_device(device.name)
        await self.models.policies.restore()
        await self.models.restore.know()
        await self._listen()
        await self.models.restore.serve()
        await self.models.runner.start()
        self._background.start(self.drift.run())
        limit = self.settings.max_upload_bytes
        await preload(self.settings.preload, self.store, self.models.runner, limit)
        await self._serve_repository()
        gc.collect()
        gc.freeze()  # what is here stays: full collections need not look at it again and again
        self._takes_requests = True
        self._reachability_changed()

    async def _serve_repository(self) -> None:
        """Serve what the model repository holds, and follow it from then on."""
        repository, folder = self._repository, self.settings.model_repository
        if repository is not None and folder is not None:
            await repository.start(await self.store.call(self.store.placed))
            self._background.start(repository.follow())
            self._background.start(watch(folder, repository.changed.set))

    async def _listen(self) -> None:
        host = self.settings.host
        try:
            certificates = self._grpc.certificates
            tls = None if certificates is None else certificates.http_context()
            self.http_port = await self._http.start(host, self.settings.http_port, tls)
        except OSError as error:
            raise StartupError(
                f"HTTP port {host}:{self.settings.http_port} cannot be used ({error.strerror}); "
                "choose another with BRAID_HTTP_PORT or --http-port"
            ) from error
        self.grpc_port = await self._grpc.start()

    async def stop(self) -> None:
        """Finish the accepted requests, then stop all parts. Jobs go on at the next start.

        The gRPC port stays open until the process ends. grpc's own shutdown cancels calls that
        arrive while it says goodbye, and their callers read CANCELLED; here they are refused
        with UNAVAILABLE, and so is who is still connected when the process ends.
        """
        self._takes_requests = False
        self._reachability_changed()
        self.models.runner.release_watchers()  # else they would hold the ports open
        self.models.serving.refuse_requests()
        try:
            async with asyncio.timeout(self.settings.drain_seconds):
                await self.models.serving.drain()
        except TimeoutError:
            log.error("requests are cut off: BRAID_DRAIN_SECONDS is over")
        await asyncio.sleep(LINGER_SECONDS)
        self._background.cancel()
        if self._repository is not None:
            self._repository.stop()
        await self.models.runner.stop()
        await self._spare_importer.close()
        await self._http.stop()
        await self.devices.close()
        self.store.close()

    async def close_ports(self) -> None:
        """Close the ports after a start that failed, before the first caller."""
        await self._grpc.close()

    def log_ready(self) -> None:
        """Log the addresses of the ports, and which awaited models do not answer yet."""
        settings, serving = self.settings, self.models.serving
        wanted = [*(entry.partition("=")[0] for entry in settings.preload), *settings.ready_models]
        answer = [name for name in wanted if serving.answers(name)]
        answer += [replica.name for replica in serving.all_served()]
        to_try = self._model_to_try(answer[0]) if answer else None
        facts = ready_facts(settings, self.grpc_port, self.http_port, to_try)
        devices = ", ".join(device.device_key for device in self.devices.all)
        extra = {**facts, "devices": devices, "store": str(settings.store)}
        if missing := self._missing_models():
            awaited = {**extra, "models": ", ".join(missing)}
            log.warning("takes requests, but is not ready until these models answer", extra=awaited)
        else:
            log.info("ready", extra=extra)

    def _model_to_try(self, name: str) -> ModelToTry:
        """Inputs of the newest version that answers of a model."""
        *_, newest = (each for each in self.models.serving.all_served() if each.name == name)
        return ModelToTry(name, newest.inputs)

    def leave(self) -> NoReturn:
        """End the process after ``stop``, its connections still open.

        Not by leaving the event loop: that cancels the handlers of calls that just came in, and
        their callers read CANCELLED.
        """
        logging.shutdown()
        os._exit(0)

    def _present(self) -> Present:
        return Present(
            self.health.is_ready,
            self.models.serving.versions(),
            list(map(DevicePresent.of, self.devices.all)),
        )

    def _prepare_job(self) -> None:
        if self.settings.spare_importer:
            self._spare_importer.prepare()
        for device in self.devices.all:
            device.bench.prepare()

    def _plan_drifted(self, plan: PlanLabels) -> None:
        """Profile a model again whose plan is slower than it was, if that is wanted."""
        if self.settings.reprofile_on_drift:
            self._background.start(self._profile_again(plan))

    async def _profile_again(self, plan: PlanLabels) -> None:
        try:
            await self.models.runner.profile_again(plan.model, int(plan.version))
        except BraidError as error:
            log.warning("not profiled again", extra={"model": plan.model, "reason": str(error)})
        else:
            self.metrics.drift.profiled_again(plan.device)

    def _worker_changed(self, device: Device) -> None:
        """Set the health, and serve on a device that is up again what is missing there."""
        if not self.grpc_port:
            return
        self._reachability_changed()
        if device.is_up:
            self._background.start(self.models.restore.serve_missing(device))

    def _model_answers(self, name: str, answers: bool) -> None:
        """Set the health of a model, and of a server that is ready only with that model."""
        self.health.model(name, answers)
        if name in self.settings.ready_models or self._repository is not None:
            self._reachability_changed()

    def _reachability_changed(self) -> None:
        """Set the server's health: ready if requests are taken, a device and all models are up."""
        with_models = not self._missing_models()
        self.health.ready(self._takes_requests and self.devices.any_up and with_models)

    def _missing_models(self) -> list[str]:
        """Names of models that the server is ready only with, and that do not answer."""
        awaited = self.settings.ready_models
        missing = [name for name in awaited if not self.models.serving.answers(name)]
        return missing + (self._repository.missing if self._repository is not None else [])

    def _model_lost(self, device: Device, digest: str, error: DamagedArtefact) -> None:
        self._background.start(self.models.restore.withdraw(device.name, digest, error))

    def _worker_ended(self, device: str, end: WorkerEnd) -> None:
        self.metrics.devices.worker_restarted(device, end.reason)


def _metrics(settings: Settings, memory: CallMemory) -> Metrics:
    metrics = Metrics()
    metrics.requests.queue_limit.set(settings.max_queue_requests)
    metrics.calls.watch(memory)
    metrics.build.runs(build_facts(settings.commit))
    if settings.triton_metrics:
        metrics.registry.register(TritonMetrics(metrics))
    return metrics


async def serve(settings: Settings, make_host: MakeMeasuringHost = measuring_host) -> NoReturn:
    """Run a server until SIGTERM or SIGINT, then end the process.

    Raises:
        StartupError: one line that says what to change.
    """
    await asyncio.to_thread(check_models, settings.preload, settings.ready_models)
    await asyncio.to_thread(check_repository, settings.model_repository)
    front = FrontEnd(settings, make_host)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        if await ends_before(stopping, front.start()):
            workers = (device.link.options for device in front.devices.all)
            leave_cores_to_devices(pinned_cores(workers))
            front.log_ready()
            await stopping.wait()
        log.info("stopping: accepted requests are finished first")
    except BraidError:
        await front.close_ports()
        raise
    finally:
        await front.stop()
    log.info("stopped")
    front.leave()


def run(settings: Settings, make_host: MakeMeasuringHost = measuring_host) -> None:
    """Run a server in this process until it is told to stop, which ends the process."""
    keep_freed_memory()
    configure_logging(settings.log_level, settings.log_format)
    for name, similar in unknown_variables().items():
        log.warning("a variable is not known", extra={"variable": name, "similar": similar or None})
    with asyncio.Runner(loop_factory=event_loop_for(settings)) as runner:
        runner.run(serve(settings, make_host))
