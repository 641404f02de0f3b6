"""``grpc.health.v1``: ``""`` says ready, ``liveness`` says alive, each model answers by name."""

from __future__ import annotations

from collections.abc import Sequence

from grpc_health.v1 import health, health_pb2

from braid.core.background import BackgroundTasks

READY = ""
LIVENESS = "liveness"

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class _Servicer(health.aio.HealthServicer):  # type: ignore[misc]
    """Servicer that can forget a service: names of deleted models would add up."""

    async def forget(self, service: str) -> None:
        """Tell who watches a service that it is unknown, and answer as if it had never been set."""
        await self.set(service, _UNKNOWN)
        if self._server_status.get(service) == _UNKNOWN:
            del self._server_status[service]


class Health:
    """Health servicer, and the answers that it gives. Belongs to the event loop."""

    def __init__(self, services: Sequence[str] = ()) -> None:
        self._services = services
        self.servicer = _Servicer()
        self._background = BackgroundTasks()
        self._set(LIVENESS, True)
        self.ready(False)

    def ready(self, is_ready: bool) -> None:
        """Set whether the server, and each of its services, takes requests."""
        self.is_ready = is_ready
        for name in (READY, *self._services):
            self._set(name, is_ready)

    def model(self, name: str, serving: bool) -> None:
        """Set whether some version of a model answers."""
        self._set(name, serving)

    def forget_model(self, name: str) -> None:
        """Know nothing of a model that is gone."""
        self._background.start(self.servicer.forget(name))

    def _set(self, service: str, serving: bool) -> None:
        setting = self.servicer.set(service, _SERVING if serving else _NOT_SERVING)
        self._background.start(setting)
