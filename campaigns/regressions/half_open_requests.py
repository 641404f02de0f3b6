"""Half-open requests kept probes out, and an odd Accept header was answered by status 500."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from urllib.request import Request, urlopen

from campaigns.regressions.scripts import FaultyServer

HALF_OPEN = 300
ODD = "text/plain;version=x, application/openmetrics-text;version=y"


def check(server: FaultyServer) -> None:
    """Probe a server while hundreds of requests have begun and do not go on."""
    server.start()
    odd = Request(f"http://{server.http_address}/metrics", headers={"Accept": ODD})
    with ExitStack() as stack:
        for _ in range(HALF_OPEN):
            address = ("127.0.0.1", server.http_port)
            sender = stack.enter_context(socket.create_connection(address, timeout=10))
            sender.sendall(b"GET /healthz HTTP/1.1\r\n")
        for path in ("/healthz", "/readyz"):
            try:
                assert server.http(path).strip() in ("ok", "ready")
            except OSError as error:
                raise AssertionError(f"{path} beside half-open requests: {error}") from None
    try:
        with urlopen(odd, timeout=10) as response:
            assert b"# TYPE braid_" in response.read()
    except OSError as error:
        raise AssertionError(f"/metrics with an odd Accept header: {error}") from None
