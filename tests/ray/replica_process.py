"""``serve`` as Ray Serve runs it, without a Ray cluster: its server of gRPC, its HAProxy before it.

--grpc-port ──> HAProxy, as Ray Serve configures and starts it ──> Ray Serve's server of gRPC
                                                                    └── Braid's handlers
"""

import argparse
import asyncio
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

from braid.server.app.front_end import FrontEnd
from braid.server.app.process import leave
from braid.server.cli import main as cli
from braid.server.cli.local import serve
from braid.server.observability.logs import configure_logging
from braid.server.ray.environment import missing, with_braid
from braid.server.ray.handlers import ADD_TO_REPLICA, ReplicaPorts, serve_here
from braid.server.settings import Settings
from tests.service.main import serving_process
from tests.service.server_process import free_port

HEALTHZ = "/ray.serve.RayServeAPIService/Healthz"
GRACE_S = 10.0


class Serve:
    """The command ``serve`` as a replica behind HAProxy."""

    add_parser = staticmethod(serve.add_parser)

    def run(self, args: argparse.Namespace, /) -> int:
        return serve.run(args, lambda settings: asyncio.run(run(settings)))


async def run(settings: Settings) -> None:
    """Start the front end, then what Ray Serve puts before it; end in the opposite order."""
    folder = settings.store.with_name(f"{settings.store.name}-haproxy")
    os.environ.update(with_braid(settings, own_files(folder), 1))
    assert not missing(settings, os.environ)
    configure_logging(settings.log_level, settings.log_format)
    front = FrontEnd(settings, serving_process, make_ports=ReplicaPorts)
    await front.start()
    assert isinstance(front.ports, ReplicaPorts)
    serve_here(front.ports, front.stop)
    server, haproxy = await behind_haproxy(settings, folder)
    front.log_ready()
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    await stopping.wait()
    await server.stop(GRACE_S)
    await haproxy.stop()
    leave()


def own_files(folder: Path) -> dict[str, str]:
    """The environment of this process, and where its HAProxy keeps its files and listens."""
    folder.mkdir(exist_ok=True)
    places = {
        "CONFIG_FILE_LOC": "haproxy.cfg",
        "SOCKET_PATH": "admin.sock",
        "SERVER_STATE_BASE": "",
        "SERVER_STATE_FILE": "server-state",
        "METRICS_SOCKET_PATH": "metrics.sock",
    }
    ports = {"METRICS_PORT": str(free_port()), "STATS_PORT": str(free_port())}
    paths = {name: str(folder / path) for name, path in places.items()}
    own = {f"RAY_SERVE_HAPROXY_{name}": value for name, value in (ports | paths).items()}
    return {**os.environ, **own, "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0"}


async def behind_haproxy(settings: Settings, folder: Path) -> tuple[Any, Any]:
    """Start Ray Serve's server of gRPC on a free port, and HAProxy on the port of the settings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.serve._private import haproxy
        from ray.serve._private.common import RequestProtocol
        from ray.serve._private.grpc_util import start_grpc_server
        from ray.serve.config import HTTPOptions, gRPCOptions

    port, loop = free_port(), asyncio.get_running_loop()
    functions = {"grpc_servicer_functions": [ADD_TO_REPLICA], "enable_reflection": False}
    options = gRPCOptions(port=port, **functions)
    _, server = await start_grpc_server(built_in, options, event_loop=loop)
    config = haproxy.HAProxyConfig(
        http_options=HTTPOptions(host="127.0.0.1", port=free_port()),
        grpc_options=gRPCOptions(port=settings.grpc_port, **functions),
        has_received_routes=True,
        has_received_servers=True,
    )
    replica = haproxy.ServerConfig(name="SERVE_REPLICA-1", host="127.0.0.1", port=port)
    backend = haproxy.BackendConfig(
        name="grpc-braid",
        path_prefix="/",
        servers=[replica],
        app_name="braid",
        protocol=RequestProtocol.GRPC,
    )
    door = haproxy.HAProxyApi(config, {"grpc-braid": backend}, str(folder / "haproxy.cfg"))
    await door.start()
    return server, door


def built_in(service_method: str, streaming_type: object) -> Any:
    """Make the handler of one of Ray Serve's own methods: HAProxy asks for ``Healthz``."""
    from ray.serve._private.constants import HEALTHY_MESSAGE
    from ray.serve.generated.serve_pb2 import HealthzResponse

    async def answer(request: object, context: object) -> bytes:
        assert service_method == HEALTHZ
        made: bytes = HealthzResponse(message=HEALTHY_MESSAGE).SerializeToString()
        return made

    return answer


if __name__ == "__main__":
    cli.COMMANDS["serve"] = Serve
    sys.exit(cli.main())
