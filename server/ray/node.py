"""Replica of Ray Serve that is a node of Braid: a whole front end, on one machine.

The front end has no port of gRPC of its own: Ray Serve makes the replica's once the constructor
has returned (``handlers.py``), so that no call comes before models answer. Its HTTP port is there
as always: metrics, console, REST, health.
"""

import asyncio
import logging
import os
from collections.abc import Mapping
from typing import Any

import ray
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from braid.core.background import BackgroundTasks
from braid.core.errors import StartupError
from braid.engine.runtime.memory import keep_freed_memory
from braid.server.app.front_end import FrontEnd
from braid.server.observability.logs import configure_logging
from braid.server.ray.environment import missing
from braid.server.ray.handlers import ReplicaPorts, serve_here
from braid.server.ray.scaling import LoadMeter
from braid.server.settings import Settings, load_settings

log = logging.getLogger("braid.ray")

LOOK_SECONDS = 0.5

THREADS_OF_RAY = "OMP_NUM_THREADS"
"""Ray sets it to the CPUs that a replica asked for, none; devices have all of their cores."""


class NodeReplica:
    """One node. Ray Serve constructs it, asks for its health and load, and lets it go."""

    async def __init__(self, settings: Mapping[str, Any]) -> None:  # type: ignore[misc]
        """Start a front end, and wait until it is ready; the environment adds to ``settings``."""
        os.environ.pop(THREADS_OF_RAY, None)
        of_node = node_settings(settings, ray.util.get_node_ip_address())
        if wrong := missing(of_node, os.environ):
            raise StartupError(f"{of_node.node_address}: {wrong}")
        keep_freed_memory()
        configure_logging(of_node.log_level, of_node.log_format)
        self._front = FrontEnd(of_node, make_ports=ReplicaPorts)
        self._load = LoadMeter(self._front.models.serving.backlogs_s)
        self._background = BackgroundTasks("ray")
        self._stopped: asyncio.Task[None] | None = None
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        front = self._front
        await front.start()
        front.settle()
        while not front.is_ready:  # noqa: ASYNC110  # models that it is to be ready with
            await asyncio.sleep(LOOK_SECONDS)
        self._background.start(self._load.run())
        ports = front.ports
        assert isinstance(ports, ReplicaPorts)
        serve_here(ports, self.stop)

    async def stop(self) -> None:
        """Finish the accepted requests, then stop all parts; once, however often it is asked."""
        if self._stopped is None:
            self._background.cancel()
            self._stopped = asyncio.ensure_future(self._front.stop())
        await asyncio.shield(self._stopped)

    async def check_health(self) -> None:
        """Raise what is wrong with this node if starting it anew could help.

        A model that does not answer, or a database that is away, is no such thing.
        """
        if not self._front.devices.any_up:
            raise RuntimeError("no device of this node is up")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        return self._load.take()

    async def __call__(self, _: Request) -> PlainTextResponse:
        port = self._front.http_port
        text = f"REST, metrics and the console are on port {port} of each node.\n"
        return PlainTextResponse(text, status_code=404)


def node_settings(given: Mapping[str, Any], host: str) -> Settings:
    """A node's settings: those given, its environment, its address. StartupError: bad ones."""
    settings = load_settings(given)
    if settings.node_address:
        return settings
    return load_settings({**given, "node_address": f"{host}:{settings.grpc_port}"})
