"""Braid's services on the server of gRPC that Ray Serve makes for a replica.

Ray Serve's own ``add_generic_rpc_handlers`` would replace each handler by one that pickles the
request and calls a method of the replica; the one of gRPC's concrete class leaves them as they
are. So statuses, trailers, streams and reflection stay Braid's, and tokens are checked before
a message is read, here instead of in interceptors, which Ray Serve's server does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
from grpc.aio._server import Server as ConcreteServer

from braid.core.errors import NoNodeUp, StartupError
from braid.server.inference.call_memory import CallMemory
from braid.server.observability.tracing import Sampling
from braid.server.ports.grpc_port import AddServices, CallChecks
from braid.server.rpc.guarding import filter_grpc_log
from braid.server.rpc.status import Handler, refusing
from braid.server.security.addresses import check_exposure
from braid.server.settings import Settings

ADD_TO_REPLICA = "braid.server.ray.handlers:add_to_replica"
"""Import path for ``grpc_servicer_functions``."""

RAY_SERVE = "/ray.serve."
"""Begins the methods that Ray Serve answers itself."""

Details = grpc.HandlerCallDetails
HandlerOf = Callable[[Details], Coroutine[Any, Any, Any]]
Stop = Callable[[], Coroutine[Any, Any, None]]


class AdmittedHandlers(grpc.GenericRpcHandler):
    """Handlers behind interceptors that never wait, for a server without interceptors."""

    def __init__(
        self,
        handlers: Sequence[grpc.GenericRpcHandler],
        interceptors: Sequence[grpc.aio.ServerInterceptor],
    ) -> None:
        async def find(details: Details) -> Handler | None:
            answers = (offered.service(details) for offered in handlers)
            return next((handler for handler in answers if handler is not None), None)

        self._handler_of: HandlerOf = find
        for interceptor in reversed(interceptors):
            self._handler_of = partial(interceptor.intercept_service, self._handler_of)

    def service(self, handler_call_details: Details) -> Handler | None:
        """Return the handler of a call, or one that refuses it; None: the method is not known."""
        try:
            self._handler_of(handler_call_details).send(None)
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


class _Collected(grpc.aio.Server):
    """Server as ``add_services`` sees it: keeps the handlers, and listens nowhere.

    gRPC's reflection looks at the class to tell which kind of handlers a server takes.
    """

    def __init__(self) -> None:
        self.handlers: list[Any] = []

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Any) -> None:
        self.handlers += generic_rpc_handlers

    def add_registered_method_handlers(self, service_name: str, method_handlers: Any) -> None:
        """Leave out what generated code adds for speed beside its generic handlers."""

    def add_insecure_port(self, address: str) -> int:
        return 0

    def add_secure_port(self, address: str, server_credentials: Any) -> int:
        return 0

    async def start(self) -> None: ...

    async def stop(self, grace: float | None) -> None: ...

    async def wait_for_termination(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        return True


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
        collected = _Collected()
        add_services(collected)
        self._port = settings.grpc_port
        self._handlers = AdmittedHandlers(collected.handlers, checks.guards(checks.gate))

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
