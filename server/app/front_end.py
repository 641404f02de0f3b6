"""One server: its parts, and the order in which they start, and stop without losing a request.

start:  store ─> ports, which answer health ─> device worker ─> models of the store serve ─> ready
stop:   health says NOT_SERVING ─> balancers look elsewhere ─> new requests are refused,
        accepted ones end ─> jobs stop ─> worker ends ─> the process ends, and only with it
        its connections
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from braid.compiler.bench import MakeMeasuringHost, measuring_host
from braid.core.background import BackgroundTasks
from braid.core.errors import DamagedArtefact
from braid.engine.link.options import WorkerEnd
from braid.engine.processes.log_lines import LOGGER
from braid.engine.runtime.memory import IDLE_SECONDS, give_back_freed_memory
from braid.server.app.interfaces import SERVICES, Interfaces
from braid.server.app.model_parts import MadeFrom, make_model_parts, make_repository
from braid.server.app.readiness import Readiness
from braid.server.devices.cores import leave_cores_to_devices, pinned_cores
from braid.server.devices.device import Device, DeviceEvents
from braid.server.devices.pool import Devices
from braid.server.devices.quota_cores import QuotaCores, cores_paid_for
from braid.server.inference.call_memory import CallMemory
from braid.server.limits import memory_limits, store_database, store_limits
from braid.server.models.preload import prefer, preload
from braid.server.observability.logs import WorkerLogs
from braid.server.observability.metrics import Metrics, TritonMetrics, tell_build
from braid.server.observability.series.requests import watch_calls
from braid.server.observability.snapshot import ContestCounts, Snapshot
from braid.server.ports.grpc_port import GrpcPorts, MakePorts, Ports
from braid.server.ports.ready_line import ModelToTry, ready_facts
from braid.server.repository.repository import watch
from braid.server.security.addresses import network_of_peer
from braid.server.servicers.health import Health
from braid.server.settings import Settings
from braid.server.store.records import ModelVersion
from braid.server.store.serving_config import PINNED
from braid.server.store.shared_files import Files
from braid.server.store.store import Store

if TYPE_CHECKING:
    from braid.server.fleet.fleet import Fleet

log = logging.getLogger("braid.frontend")

LINGER_SECONDS = 0.2  # for the last answers to leave the process


class FrontEnd:
    """One server process and everything it owns."""

    def __init__(
        self,
        settings: Settings,
        make_host: MakeMeasuringHost = measuring_host,
        make_ports: MakePorts = GrpcPorts,
    ) -> None:
        """Start nothing yet. Raises StartupError: a setting or the store cannot be used."""
        self.settings = settings
        self._background = BackgroundTasks()
        self._memory = memory = CallMemory(memory_limits(settings), network_of_peer)
        self.metrics = _metrics(settings, memory)
        self.store, self._fleet = open_store(
            settings, self.metrics.registry, lambda: self.models.serving.digests()
        )
        with ExitStack() as opened:
            opened.callback(self.store.close)
            self._files = Files() if self._fleet is None else self._fleet.files
            events = DeviceEvents(self._worker_changed, self._worker_ended, self._model_lost)
            self.devices = Devices(settings, events, make_host)
            allowance = self.devices.allowance
            self._cores = QuotaCores(allowance.cores, cores_paid_for(settings, allowance))
            health = Health(SERVICES, self._device_facts)
            self._readiness = Readiness(health, self.devices, settings.ready_models)
            made_from = MadeFrom(
                settings,
                self.store,
                self.metrics,
                self._fleet,
                self._files,
                self.devices,
            )
            self.models = make_model_parts(made_from, self._readiness.model_changed)
            self._repository = make_repository(made_from, self.models, self._readiness.changed)
            self._readiness.follow(self.models.serving, self._repository)
            self._interfaces = Interfaces(
                *(settings, self.store, self.metrics, self.devices, self.models, health, memory),
                *(self._readiness, make_ports),
            )
            self._worker_logs = WorkerLogs(self.models.serving.names_of)
            self.metrics.snapshot.watch(self._snapshot, settings.store, settings.max_store_bytes)
            opened.pop_all()

    @property
    def ports(self) -> Ports:
        return self._interfaces.ports

    @property
    def http_port(self) -> int:
        return self._interfaces.http_port

    @property
    def is_ready(self) -> bool:
        """True if requests are taken, a device is up and all models awaited answer."""
        return self._readiness.is_ready

    async def start(self) -> None:
        """Start all parts; returns when requests are taken. StartupError: no port, or no device."""
        logging.getLogger(LOGGER).addFilter(self._worker_logs)
        await asyncio.to_thread(self._cores.look)
        self._background.start(self._cores.run())
        await self._interfaces.listen()
        _leave_to_stay()  # while the fork server loads
        await self._files.start()
        await self.devices.start()
        for device in self.devices.all:
            self.metrics.jobs.add_device(device.name)
        await prefer(self.settings.preload, self.store)
        await self.models.policies.restore()
        await self.models.restore.know()
        self._interfaces.answer()
        await self._restore()
        if self._fleet is not None:
            keys = self.models.runner.services.device_keys
            await self._fleet.join(keys, self._interfaces.grpc_port)
        await self.models.runner.start()
        if self._fleet is not None:
            self._fleet.start()
        self._background.start(self.models.residency.run())
        self._background.start(_give_back_memory())
        self._background.start(self.devices.sleep_while(self._is_empty))
        self._background.start(self._interfaces.rates.run())
        if self.settings.compare_again:
            self._background.start(self.models.padding.run())
            self._background.start(self.models.pairs.run())
        limit = self.settings.max_upload_bytes
        preloaded = await preload(self.settings.preload, self.store, self.models.runner, limit)
        for name, version in preloaded:
            await self.models.policies.answer_with(name, version)
        await self._serve_repository()
        _leave_to_stay()
        self._readiness.take_requests()

    async def _restore(self) -> None:
        """Load the models of the store; what takes longer than is waited for goes on behind."""
        await self.models.restore.serve(self._is_awaited)
        done = asyncio.Event()

        async def serve_others() -> None:
            try:
                await self.models.restore.serve()
            finally:
                done.set()

        self._background.start(serve_others())
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.restore_seconds):
                await done.wait()

    def _is_empty(self) -> bool:
        """True without versions, jobs, and uploads that may become some."""
        serving, runner = self.models.serving, self.models.runner
        return not (serving.versions() or runner.has_jobs or self.store.receives)

    def _is_awaited(self, model: ModelVersion) -> bool:
        """True if the server is ready only once a model of the store is loaded."""
        settings = self.settings
        return (
            settings.model_repository is not None
            or model.name in settings.ready_models
            or self.models.serving.config(model.name).residency.kind == PINNED
        )

    async def _serve_repository(self) -> None:
        repository, folder = self._repository, self.settings.model_repository
        if repository is not None and folder is not None:
            await repository.start(await self.store.call(self.store.placed))
            self._background.start(repository.follow())
            self._background.start(watch(folder, repository.changed.set))

    async def stop(self) -> None:
        """Finish the accepted requests, then stop all parts. Jobs go on at the next start.

        The gRPC port stays open until the process ends. grpc's own shutdown cancels calls that
        arrive while it says goodbye, and their callers read CANCELLED; here they are refused
        with UNAVAILABLE, and so is who is still connected when the process ends.
        """
        if self._readiness.refuse_requests():  # balancers need time to hear of it
            await asyncio.sleep(self.settings.shutdown_delay_seconds)
        self.models.runner.release_watchers()  # else they would hold the ports open
        self.models.serving.refuse_requests()
        try:
            async with asyncio.timeout(self.settings.drain_seconds):
                await self.models.serving.drain()
                await self._memory.answers_taken()
        except TimeoutError:
            log.error("requests are cut off: BRAID_DRAIN_SECONDS is over")
        await asyncio.sleep(LINGER_SECONDS)
        self._background.cancel()
        await self.models.residency.keep_order()
        if self._fleet is not None:
            await self._fleet.stop()
        if self._repository is not None:
            self._repository.stop()
        await self.models.runner.stop()
        if self._fleet is not None:
            await self._fleet.leave()
        await self._interfaces.stop_http()
        await self.devices.close()
        logging.getLogger(LOGGER).removeFilter(self._worker_logs)
        await self._files.stop()
        self.store.close()

    def settle(self) -> None:
        """Leave the cores to the devices, and log that the server is ready."""
        leave_cores_to_devices(pinned_cores(device.link.options for device in self.devices.all))
        self.log_ready()

    def log_ready(self) -> None:
        settings, serving, ports = self.settings, self.models.serving, self._interfaces
        wanted = [*(entry.partition("=")[0] for entry in settings.preload), *settings.ready_models]
        answer = [name for name in wanted if serving.answers(name)]
        answer += [replica.name for replica in serving.all_served()]
        newest = {replica.name: replica.inputs for replica in serving.all_served()}
        to_try = ModelToTry(answer[0], newest[answer[0]]) if answer else None
        facts = ready_facts(settings, ports.grpc_port, ports.http_port, to_try)
        devices = ", ".join(device.device_key for device in self.devices.all)
        extra = {
            **facts,
            "devices": devices,
            "store": str(settings.store),
            "cpus": f"{self.devices.allowance.cpus:g}",
            "memory": settings.memory_bytes.human_readable(),
        }
        if missing := self._readiness.missing_models():
            awaited = {**extra, "models": ", ".join(missing)}
            log.warning("takes requests, but is not ready until these models answer", extra=awaited)
        else:
            log.info("ready", extra=extra)

    def _snapshot(self) -> Snapshot:
        for device in self.devices.all:  # for the next one
            self._background.start(device.look())
        replicas = self.models.serving.all_replicas()
        return Snapshot(
            self._readiness.is_ready,
            self.models.serving.versions(),
            [(device, device.model_memory) for device in self.devices.all],
            replicas,
            [
                ContestCounts(
                    (replica.name, str(replica.version), replica.device.name, str(size)),
                    *(dict(contest.runs), contest.is_open, contest.estimated_loss),
                )
                for replica in replicas
                for of, size, contest in replica.contests
                if of == replica.profiled
            ],
            {(replica.name, replica.version) for replica in self.models.serving.all_served()},
            self.settings.memory_bytes,
            self.devices.allowance.cpus,
        )

    def _device_facts(self) -> list[dict[str, object]]:
        return [
            {
                "device": device.name,
                "is_up": device.is_up,
                "cores": device.state.name,
                "nearest_ns": device.state.least_ns,
                "farthest_ns": device.state.most_ns,
            }
            for device in self.devices.all
        ]

    def _worker_changed(self, device: Device) -> None:
        """Set the health, and serve on a device that is up again what is missing there."""
        if not self._interfaces.grpc_port:
            return
        self._readiness.changed()
        if device.is_up:
            self._background.start(self.models.restore.serve_missing(device))

    def _model_lost(self, device: Device, digest: str, error: DamagedArtefact) -> None:
        self._background.start(self.models.restore.withdraw(device.name, digest, error))

    def _worker_ended(self, device: str, end: WorkerEnd) -> None:
        self.metrics.jobs.worker_restarts.labels(device, end.reason.value).inc()


def _leave_to_stay() -> None:
    """Let full collections not look again and again at what is here and stays."""
    gc.collect()
    gc.freeze()


async def _give_back_memory() -> None:
    """Give back what large requests have freed, now and then; until cancelled."""
    while True:
        await asyncio.sleep(IDLE_SECONDS)
        await asyncio.to_thread(give_back_freed_memory)


def open_store(
    settings: Settings,
    metrics: CollectorRegistry,
    serving_digests: Callable[[], Collection[str]],
) -> tuple[Store, Fleet | None]:
    """Open the store; with the fleet, if other servers may share it. Raises StartupError."""
    where = settings.store, store_limits(settings), store_database(settings), settings.node_name
    if not settings.is_fleet:
        return Store.open(*where), None
    from braid.server.fleet.store import FleetStore

    store = FleetStore.open(*where)  # says what is missing, if that is psycopg
    with ExitStack() as opened:
        opened.callback(store.close)
        from braid.server.fleet.fleet import Fleet

        fleet = Fleet(settings, store, metrics, serving_digests)
        opened.pop_all()
    return store, fleet


def _metrics(settings: Settings, memory: CallMemory) -> Metrics:
    metrics = Metrics()
    metrics.requests.queue_limit.set(settings.max_queue_requests)
    watch_calls(metrics.registry, memory)
    tell_build(metrics.registry, settings.commit)
    if settings.triton_metrics:
        metrics.registry.register(TritonMetrics(metrics))
    return metrics
