"""Everything that callers reach: gRPC services, the protocol over HTTP, the console, metrics."""

import asyncio
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, replace

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from braid.core.errors import StartupError
from braid.core.pieces import Turns
from braid.server.app.model_parts import ModelParts
from braid.server.app.readiness import Readiness
from braid.server.console.facts import Facts
from braid.server.console.registration import Register
from braid.server.console.sessions import Sessions
from braid.server.console.site import TRY, Console
from braid.server.devices.pool import Devices
from braid.server.inference.call_memory import CallMemory
from braid.server.inference.shared_regions import SharedRegions
from braid.server.jobs.node_list import NodeList
from braid.server.limits import cors_origins, host_names
from braid.server.observability.metrics import Metrics
from braid.server.observability.tracing import Sampling
from braid.server.ports.grpc_port import MESSAGE_OVERHEAD_BYTES, MakePorts
from braid.server.ports.http.requests import BodyRoom
from braid.server.ports.http.routes import health_routes, metrics_route
from braid.server.ports.http.server import HttpServer
from braid.server.ports.ready_line import near_address, register_command
from braid.server.rpc.status import Context, Handler, handlers_of
from braid.server.security.tokens import Role
from braid.server.servicers.admin import SERVICE as ADMIN
from braid.server.servicers.admin import AdminServicer
from braid.server.servicers.braid_v1 import BraidV1
from braid.server.servicers.health import Health
from braid.server.servicers.oip import wire as oip
from braid.server.servicers.oip.models import ModelMethods, ServerMethods
from braid.server.servicers.oip.repository import RepositoryMethods
from braid.server.servicers.oip.settings import LogLevels, TraceSettings
from braid.server.servicers.oip.shared_memory import SharedMemoryMethods
from braid.server.servicers.oip.tensors import OpenInference
from braid.server.servicers.rest.calls import Admission, IsSignedIn
from braid.server.servicers.rest.inference import RestInference
from braid.server.servicers.rest.routes import Infer, RestServices, rest_routes
from braid.server.servicers.tensor_service import TensorService
from braid.server.servicers.uploads import ModelUploads
from braid.server.settings import Settings, shown_settings
from braid.server.store.store import Store

LARGE_BODIES = 4
"""Large bodies of JSON that are read at once: that takes ten times their bytes."""

SERVICES = (
    BraidV1.service,
    ADMIN.full_name,
    OpenInference.service,
)
"""Names of the gRPC services that are up while the server takes requests."""


@dataclass(eq=False)
class Interfaces:
    """The ports of one server and the methods behind them. Belongs to the event loop."""

    _settings: Settings
    _store: Store
    _metrics: Metrics
    _devices: Devices
    _models: ModelParts
    _health: Health
    _memory: CallMemory
    _readiness: Readiness
    make_ports: InitVar[MakePorts]
    grpc_port: int = 0
    http_port: int = 0

    def __post_init__(self, make_ports: MakePorts) -> None:
        """Listen on nothing yet. StartupError: tokens or certificates are missing or unusable."""
        settings, models, memory = self._settings, self._models, self._memory
        self._sampling = Sampling()
        self._turns = Turns()
        services = models.runner.services
        self._nodes = NodeList(
            *(self._store, settings, lambda: services.device_keys, lambda: self.grpc_port),
            self._devices.allowance,
        )
        self._regions = SharedRegions(
            settings.system_shared_memory,
            settings.max_message_bytes,
            lambda owner: self.ports.checks.tokens.may_own(owner),
        )
        self._oip = self._open_inference()
        self._admin = self._administration()
        protocol = OpenInference(self._regions)
        self._inference = (
            TensorService(models.serving, memory, self._turns, BraidV1()).methods(),
            TensorService(models.serving, memory, self._turns, protocol).methods(self._oip),
        )
        self.ports = make_ports(settings, self._add_services, self._sampling, memory)
        self._started = self.ports.checks.started.event
        self._health.may_see = self._may_see
        self._host_names = host_names(settings)
        self._origins = cors_origins(settings)
        self._http = self._http_server()

    async def listen(self) -> None:
        """Take connections; calls but health wait for ``answer``. StartupError: a port is taken."""
        settings = self._settings
        self._started.clear()
        try:
            certificates = self.ports.checks.certificates
            tls = None if certificates is None else certificates.http_context()
            self.http_port = await self._http.start(settings.host, settings.http_port, tls)
        except OSError as error:
            raise StartupError(
                f"HTTP port {settings.host}:{settings.http_port} cannot be used "
                f"({error.strerror}); choose another with BRAID_HTTP_PORT or --http-port"
            ) from error
        self.grpc_port = await self.ports.start()

    def answer(self) -> None:
        """Answer the calls that have come, and those to come."""
        self._started.set()

    async def stop_http(self) -> None:
        """Close the HTTP port. The gRPC port stays open until the process ends."""
        await self._http.stop()

    def _http_server(self) -> HttpServer:
        metrics = self._metrics
        rest = self._rest()
        return HttpServer(
            [
                metrics_route(metrics.registry, metrics.snapshot, self.ports.checks.gate),
                *health_routes(self._waits_for),
                *rest_routes(rest),
                *self._console(rest).routes(),
            ],
            self._is_our_name,
            origins=self._origins,
            started=self._started,
            connections=self.ports.checks.connections,
        )

    def _waits_for(self) -> Sequence[str]:
        """What keeps the server from being ready; names of models are for callers with a token."""
        has_tokens = self.ports.checks.tokens.are_required
        return self._readiness.waits_for(with_names=not has_tokens)

    def _may_see(self, context: Context) -> bool:
        metadata = context.invocation_metadata()
        return all(gate.admits(metadata, Role.INFER) for gate in self.ports.checks.gate)

    def _is_our_name(self, host: str, in_protocol: bool) -> bool:
        """True if a ``Host`` is answered; scripts of other sites have no token for the protocol."""
        if in_protocol and self.ports.checks.tokens.are_required:
            return True
        return self._host_names.include(host)

    def _rest(self) -> RestServices:
        protocol, settings = RestInference(self._regions), self._settings
        models, memory = self._models.serving, self._memory
        return RestServices(
            inference=TensorService(models, memory, self._turns, protocol),
            models=models,
            others={**self._oip, **self._admin},
            admission=self._admission(self._origins),
            turns=self._turns,
            reading=asyncio.Semaphore(LARGE_BODIES),
            room=BodyRoom(settings.calls_memory_bytes),
            body_bytes=settings.max_message_bytes + MESSAGE_OVERHEAD_BYTES,
        )

    def _admission(
        self, origins: Sequence[str], is_signed_in: IsSignedIn = lambda headers: False
    ) -> Admission:
        checks, certificates = self.ports.checks, self.ports.checks.certificates
        is_mutual = certificates is not None and certificates.are_mutual
        return Admission(checks.gate, checks.telemetry, is_mutual, origins, is_signed_in)

    def _console(self, rest: RestServices) -> Console:
        """Make the console: for callers with the admin token; if there is none, pages for all."""
        models, settings = self._models, self._settings
        facts = Facts(
            models.queries,
            models.policies,
            models.runner,
            models.serving,
            self._metrics,
            self._devices,
            shown_settings(settings),
            self._nodes,
            lambda: register_command(settings, near_address(settings, self.grpc_port)),
        )
        self.rates = facts.rates
        tokens, is_tls = self.ports.checks.tokens, settings.tls_certificate is not None
        sessions = Sessions(tokens.is_admin)
        services = replace(rest, admission=self._admission((), sessions.is_signed_in))
        register = Register(services, settings.max_upload_bytes)
        calls = [register.route(), Infer(TRY, services).route()]
        return Console(facts, sessions, calls, is_tls, tokens.are_required)

    def _open_inference(self) -> dict[str, Handler]:
        models, regions = self._models, self._regions
        sampling = None if self._settings.tracing == "off" else self._sampling
        device_names = [device.name for device in self._devices.all]
        return oip.handlers(
            ServerMethods(self._health, regions.is_offered),
            ModelMethods(models.serving, self._metrics),
            RepositoryMethods(models.loader, models.policies, device_names),
            SharedMemoryMethods(regions),
            LogLevels(),
            TraceSettings(sampling),
        )

    def _administration(self) -> dict[str, Handler]:
        settings, models = self._settings, self._models
        uploads = ModelUploads(
            self._store,
            settings.max_upload_bytes,
            settings.upload_idle_seconds,
            settings.max_samples_bytes,
            self._metrics.jobs.uploads.observe,
        )
        servicer = AdminServicer(
            uploads, models.runner, models.serving, models.queries, models.policies, self._nodes
        )
        return handlers_of(ADMIN, servicer)

    def _add_services(self, server: grpc.aio.Server) -> None:
        admin = grpc.method_handlers_generic_handler(ADMIN.full_name, self._admin)
        server.add_generic_rpc_handlers((*self._inference, admin))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection(
            [
                *SERVICES,
                health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
                reflection.SERVICE_NAME,
            ],
            server,
        )
