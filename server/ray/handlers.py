"""Braid's services on the server of gRPC that Ray Serve makes for a replica.

Ray Serve's own ``add_generic_rpc_handlers`` would replace each handler by one that pickles the
request and calls a method of the replica; the one of gRPC's concrete class leaves them as they
are. So statuses, trailers, streams and reflection stay Braid's, and tokens are checked before
a message is read, here instead of in interceptors, which Ray Serve's server does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import grpc
from grpc.aio._server import Server as ConcreteServer

from braid.core.errors import NoNodeUp, StartupError
from braid.server.http2.server import Server
from braid.server.inference.call_memory import CallMemory
from braid.server.observability.tracing import Sampling
from braid.server.ports.grpc_port import AddServices, CallChecks, server_of
from braid.server.rpc.guarding import filter_grpc_log
from braid.server.rpc.status import Handler, refusing
from braid.server.security.addresses import check_exposure
from braid.server.settings import Settings

ADD_TO_REPLICA = "braid.server.ray.handlers:add_to_replica"
"""Import path for ``grpc_servicer_functions``."""

RAY_SERVE = "/ray.serve."
"""Begins the methods that Ray Serve answers itself."""

Details = grpc.HandlerCallDetails
Stop = Callable[[], Coroutine[Any, Any, None]]


class AdmittedHandlers(grpc.GenericRpcHandler):
    """Handlers of a server of ours that listens nowhere, behind interceptors that never wait."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def service(self, handler_call_details: Details) -> Handler | None:
        """Return the handler of a call, or one that refuses it; None: the method is not known."""
        finding: Any = self._server.handler_of(handler_call_details)
        try:
            finding.send(None)
        except StopIteration as done:
            handler: Handler | None = done.value
            return handler
        raise AssertionError("an interceptor waited")


class NoNodeHandlers(grpc.GenericRpcHandler):
    """Refuses every call: Ray Serve's own proxy, which stands in while no replica runs."""

    def service(self, handler_call_details: Details) -> Handler | None:
        """Return a handler that refuses, but for the methods of Ray Serve."""
        if str(handler_call_details.method).startswith(RAY_SERVE):
            return None
        return refusing(NoNodeUp("no node of Braid is up; try again"))


class ReplicaPorts:
    """Port of a front end that is a replica: Ray Serve opens it once the front end has started."""

    def __init__(
        self,
        settings: Settings,
        add_services: AddServices,
        sampling: Sampling,
        memory: CallMemory,
    ) -> None:
        """Collect the services. StartupError: a setting cannot hold, or strangers may do all."""
        _check(settings)
        filter_grpc_log()
        self.checks = checks = CallChecks(settings, sampling, memory)
        check_exposure(
            "0.0.0.0",  # where Ray Serve listens
            authenticated=checks.tokens.are_required,
            allowed=settings.allow_unauthenticated,
        )
        server = server_of(settings, checks, checks.gate)
        add_services(server)
        self._port = settings.grpc_port
        self._handlers = AdmittedHandlers(server)

    async def start(self) -> int:
        """Return the port of HAProxy, which stands before the replica's own."""
        return self._port

    async def close(self) -> None:
        """Do nothing: Ray Serve closes its port."""

    def add_to(self, server: ConcreteServer) -> None:
        ConcreteServer.add_generic_rpc_handlers(server, (self._handlers,))


def _check(settings: Settings) -> None:
    if settings.tls_certificate is not None:
        raise StartupError("Ray Serve's ports have no TLS: end it before HAProxy, no BRAID_TLS_*")
    if settings.admin_address:
        raise StartupError("a replica of Ray Serve has one port: unset BRAID_ADMIN_ADDRESS")


@dataclass(slots=True)
class _Replica:
    """What this process serves; set before Ray Serve makes its server."""

    ports: ReplicaPorts | None = None
    stop: Stop | None = None


_replica = _Replica()


def serve_here(ports: ReplicaPorts, stop: Stop) -> None:
    """Have the server that Ray Serve makes in this process answer by ``ports``, which have started.

    ``stop`` is awaited when Ray Serve ends its server, before calls are cut off.
    """
    _replica.ports, _replica.stop = ports, stop


def add_to_replica(_: object, server: ConcreteServer) -> None:
    """Add the services of this process's node; without one, answer that no node is up.

    Ray Serve calls it with each server of gRPC that it makes: those of replicas, and that of the
    proxy beside the head, which HAProxy falls back to.
    """
    ports, stop = _replica.ports, _replica.stop
    if ports is None or stop is None:
        ConcreteServer.add_generic_rpc_handlers(server, (NoNodeHandlers(),))
        return
    ports.add_to(server)
    stop_node = stop

    async def stopped(grace: float | None) -> None:
        del server.stop
        await stop_node()
        await server.stop(grace)

    # Ray Serve tells nobody else that it has drained a replica, and only cuts off what is open.
    server.stop = stopped  # type: ignore[method-assign]
