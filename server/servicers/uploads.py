"""Uploads of model files: a header, chunks and a footer, as long as messages keep arriving.

A caller that stops sending must not keep its place among the uploads. The server may wait
``idle_s`` seconds for an upload; each part that arrives restores time in proportion to its bytes.
So neither silence nor a byte now and then keeps a place for longer.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from time import monotonic

from braid.core.errors import DeadlineExceeded, InvalidUpload
from braid.engine.importer.host.samples import digest_of, read_samples
from braid.engine.processes.fork_server import ForkServer
from braid.server.models.first_bytes import FirstBytes
from braid.server.rpc.status import Context
from braid.server.security.addresses import network_of_peer
from braid.server.store.records import ReceivedSamples, ReceivedUpload
from braid.server.store.store import Store
from braid.server.store.uploads import Upload
from braid_client.wire import admin_pb2 as wire

SLOWEST_BYTES_PER_S = 8 << 10
"""An upload that arrives more slowly uses up its seconds."""


class IdleTime:
    """Seconds that the server may still wait for the parts of one upload."""

    def __init__(self, idle_s: float) -> None:
        self.left_s = self._idle_s = idle_s

    def arrived(self, waited_s: float, size_bytes: int) -> None:
        """Subtract the wait for a part, and restore time for its bytes."""
        restored_s = size_bytes / SLOWEST_BYTES_PER_S
        self.left_s = min(self._idle_s, self.left_s - waited_s + restored_s)


async def arriving(
    parts: AsyncIterator[wire.RegisterModelRequest], idle_s: float
) -> AsyncIterator[wire.RegisterModelRequest]:
    """Yield the parts of an upload. DeadlineExceeded: they stopped, or come too slowly."""
    idle = IdleTime(idle_s)
    while True:
        began = monotonic()
        try:
            async with asyncio.timeout(idle.left_s):
                part = await anext(parts)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise DeadlineExceeded(
                f"the upload stood still for {idle_s:g} s in all (BRAID_UPLOAD_IDLE_SECONDS); send "
                "the file again, over a connection that does not stop"
            ) from None
        idle.arrived(monotonic() - began, len(part.chunk) + len(part.samples))
        yield part
        del part


async def header_of(parts: AsyncIterator[wire.RegisterModelRequest]) -> wire.RegisterModelHeader:
    """First message of an upload. InvalidUpload: it is no header, or there is none."""
    async for part in parts:
        if part.WhichOneof("part") == "header":
            return part.header
        raise InvalidUpload("the first message must be the header")
    raise InvalidUpload("the stream is empty; send a header, chunks and a footer")


@dataclass(slots=True)
class SampleUpload:
    """File of samples of one registration; begins with its first part, if there is one.

    What is received stays until ``_kept`` is closed.
    """

    _store: Store
    _max_bytes: int
    _caller: str
    _kept: AsyncExitStack
    _upload: Upload | None = None
    _received_bytes: int = 0
    _received: ReceivedSamples | None = None

    async def write(self, part: bytes) -> None:
        """Append a part. Raises InvalidUpload: the file is too large."""
        self._received_bytes += len(part)
        if self._received_bytes > self._max_bytes:
            raise InvalidUpload(
                f"the samples take more than {self._max_bytes} bytes (BRAID_MAX_SAMPLES_BYTES); "
                "give fewer"
            )
        if self._upload is None:
            upload = self._store.receive(self._max_bytes, self._caller)
            self._upload = await self._kept.enter_async_context(upload)
        await self._upload.write(part)

    async def received(self) -> ReceivedSamples | None:
        """Samples that have come, checked by themselves; None: none. Raises InvalidRequest."""
        if self._upload is not None and self._received is None:
            path = (await self._upload.finish(None)).path
            assert path is not None
            digest = await asyncio.to_thread(lambda: digest_of(read_samples(path, self._max_bytes)))
            self._received = ReceivedSamples(path, digest)
        return self._received


@dataclass(frozen=True, slots=True)
class ModelUploads:
    """Receives model files into the store."""

    _store: Store
    _max_bytes: int
    idle_s: float  # of one upload; see ``arriving``
    _max_samples_bytes: int
    _on_received: Callable[[int], None]  # told the bytes of each file that arrived whole

    @asynccontextmanager
    async def file(
        self, parts: AsyncIterator[wire.RegisterModelRequest], caller: str
    ) -> AsyncIterator[ReceivedUpload]:
        """The file of chunks and footer, and the samples; or InvalidUpload, InvalidRequest."""
        first = FirstBytes()
        with suppress(OSError):  # which the import will meet and say
            ForkServer.running()  # loads its libraries while the file arrives, if it was ended
        async with AsyncExitStack() as kept:
            upload = await kept.enter_async_context(self._store.receive(self._max_bytes, caller))
            samples = SampleUpload(self._store, self._max_samples_bytes, caller, kept)
            async for part in parts:
                field = part.WhichOneof("part")
                if field == "chunk":
                    await samples.received()
                    first.take(part.chunk)
                    await upload.write(part.chunk)
                elif field == "samples":
                    await samples.write(part.samples)
                elif field == "footer":
                    received = await upload.finish(part.footer.sha256)
                    self._on_received(received.size_bytes)
                    first.end()
                    yield replace(received, samples=await samples.received())
                    return
                else:
                    raise InvalidUpload("only chunks and one footer may follow the header")
            raise InvalidUpload(
                "the stream ended without a footer; send the SHA-256 after the last chunk"
            )


def caller_of(context: Context) -> str:
    """Return the caller's network, as callers choose freely how often they connect."""
    return network_of_peer(context.peer())
