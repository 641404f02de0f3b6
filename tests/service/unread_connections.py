"""Connections of clients that stop reading: what the server sends to them stays with the server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

HANDSHAKE_BYTES = 4096
"""Bytes that reach the client: enough to connect, fewer than an answer has."""


@contextlib.asynccontextmanager
async def unread_connections(address: str, source: str = "127.0.0.1") -> AsyncIterator[str]:
    """Address of a port that forwards everything to ``address``, and back only the handshake.

    Its connections to the server have the source address ``source``.
    """
    host, _, port = address.rpartition(":")
    connections: list[asyncio.Task[None]] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(asyncio.create_task(_pass_on(reader, writer, (host, int(port)), source)))

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as listener:
        near = listener.sockets[0].getsockname()[1]
        try:
            yield f"127.0.0.1:{near}"
        finally:
            for each in connections:
                each.cancel()
            await asyncio.gather(*connections, return_exceptions=True)


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: tuple[str, int], source: str
) -> None:
    far_reader, far_writer = await asyncio.open_connection(
        *server, limit=HANDSHAKE_BYTES, local_addr=(source, 0)
    )
    try:
        back = asyncio.create_task(_pump(far_reader, writer, HANDSHAKE_BYTES))
        try:
            await _pump(reader, far_writer, None)
        finally:
            back.cancel()
    finally:
        for each in (writer, far_writer):
            each.transport.abort()
            with contextlib.suppress(OSError):
                await each.wait_closed()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: int | None
) -> None:
    """Forward bytes: all, or ``most`` of them."""
    passed = 0
    while (most is None or passed < most) and (data := await reader.read(1024)):
        passed += len(data)
        writer.write(data)
        await writer.drain()
