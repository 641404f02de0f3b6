"""Event loop of the front end: libuv's, or Python's own beside gRPC's library.

Under grpc.aio, whose threads wake the loop through sockets, libuv is slower
(docs/decisions/0015-transport.md); where the loop reads requests itself, both are about as fast
(0034).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import uvloop

from braid.server.ports.grpc_port import takes_event_loop
from braid.server.settings import Settings

MakeLoop = Callable[[], asyncio.AbstractEventLoop]


def event_loop_for(settings: Settings) -> MakeLoop:
    """Return what makes the loop of a server with these settings."""
    return uvloop.new_event_loop if takes_event_loop(settings) else asyncio.new_event_loop
