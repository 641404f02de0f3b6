"""The main port of gRPC, on which a server listens before it has loaded what answers there.

A client that is refused waits a second before it comes back; one that is connected waits no longer
than the start takes. Loads no gRPC.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from braid.core.errors import StartupError
from braid.server.http2.addresses import listen_at

if TYPE_CHECKING:
    from braid.server.settings import Settings


def listen(settings: Settings) -> list[socket.socket]:
    """Listen at the main port; connections wait until they are accepted.

    Raises:
        StartupError: the address cannot be used.
    """
    host, port = settings.host, settings.grpc_port
    try:
        return listen_at(host.strip("[]"), port)
    except OSError as error:
        raise cannot_be_used(f"{host}:{port}", "BRAID_GRPC_PORT or --grpc-port") from error


def cannot_be_used(address: str, setting: str) -> StartupError:
    return StartupError(
        f"gRPC address {address} cannot be used (taken?); choose another with {setting}"
    )
