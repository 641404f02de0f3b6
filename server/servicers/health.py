"""``grpc.health.v1``: ``""`` says ready, ``liveness`` says alive, each model answers by name.

grpc's own servicer is not used: of several who watch a name, it tells none of a change once one of
them has left, and one that reads nothing holds the others and the server's end up.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from braid.core.errors import Unauthenticated
from braid.server.rpc.status import Context, answering

READY = ""
LIVENESS = "liveness"

DEVICES = "braid-devices"
"""Key of the metadata about devices."""

_Response = health_pb2.HealthCheckResponse


@dataclass(eq=False)
class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """The answers to who asks for health or watches it. Belongs to the event loop."""

    _services: Sequence[str] = ()  # that are ready when the server is
    _devices: Callable[[], Sequence[Mapping[str, object]]] = lambda: ()  # facts about each
    answers: Callable[[str], bool | None] = lambda name: None
    """Whether a model answers; None: there is none of that name."""
    may_see: Callable[[Context], bool] = lambda _: True
    """Whether a caller is told of devices, and of models, whose names are nobody else's."""
    is_ready: bool = False
    _watchers: defaultdict[str, set[asyncio.Event]] = field(
        default_factory=partial(defaultdict, set)
    )

    def ready(self, is_ready: bool) -> None:
        self.is_ready = is_ready
        for name in (READY, *self._services):
            self.changed(name)

    def changed(self, name: str) -> None:
        for changed in self._watchers.get(name, ()):
            changed.set()

    def _status(self, name: str) -> Any:
        """Status of a name; None: it is nobody's."""
        if name in (READY, *self._services):
            is_serving: bool | None = self.is_ready
        else:
            is_serving = name == LIVENESS or self.answers(name)
        if is_serving is None:
            return None
        return _Response.SERVING if is_serving else _Response.NOT_SERVING

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        """Answer with the status of a name, or NOT_FOUND; trailing JSON tells of the devices."""
        await self._check(request.service, context)
        status = self._status(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        if request.service == READY and self.may_see(context) and (devices := self._devices()):
            context.set_trailing_metadata(((DEVICES, json.dumps(devices)),))
        return _Response(status=status)

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        await self._check(request.service, context)
        name, last, changed = request.service, None, asyncio.Event()
        del request  # which may have more than a name
        self._watchers[name].add(changed)
        try:
            while True:
                changed.clear()
                status = self._status(name)
                status = _Response.SERVICE_UNKNOWN if status is None else status
                if status != last:
                    last = status
                    yield _Response(status=status)
                await changed.wait()
        finally:
            self._watchers[name].discard(changed)
            if not self._watchers[name]:
                del self._watchers[name]

    async def _check(self, name: str, context: Context) -> None:
        """Refuse strangers who ask for a model, whether there is one or not."""
        if name not in (READY, LIVENESS, *self._services) and not self.may_see(context):
            async with answering(context):
                raise Unauthenticated("health of a model is told to callers with a token")
