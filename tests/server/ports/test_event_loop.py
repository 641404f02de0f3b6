"""Which event loop a server runs in."""

from __future__ import annotations

from pathlib import Path

import pytest
import uvloop

from braid.server.ports.event_loop import event_loop_for
from braid.server.settings import Settings


@pytest.mark.parametrize(
    ("more", "is_libuv"),
    [
        ({"host": "127.0.0.1"}, True),
        ({"host": "0.0.0.0", "grpc_transport": "asyncio"}, True),
        ({"host": "127.0.0.1", "grpc_transport": "grpcio"}, False),
        ({"host": "0.0.0.0"}, False),
        ({"host": "127.0.0.1", "tls_certificate": "c.pem", "tls_key": "k.pem"}, False),
    ],
)
def test_libuv_runs_where_the_loop_itself_reads_the_calls(
    tmp_path: Path, more: dict[str, str], is_libuv: bool
) -> None:
    loop = event_loop_for(Settings(store=tmp_path, **more))()  # type: ignore[arg-type]
    loop.close()
    assert isinstance(loop, uvloop.Loop) == is_libuv
