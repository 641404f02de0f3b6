"""Samples that come with a model file: received before it, read and checked at once."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from braid.core.errors import InvalidUpload
from braid.engine.importer.host.samples import digest_of, read_samples
from braid.server.store.records import ReceivedSamples
from braid.server.store.store import Store
from braid.server.store.uploads import Upload


class SampleUpload:
    """File of samples of one registration; begins with its first part, if there is one."""

    def __init__(self, store: Store, max_bytes: int, caller: str, kept: AsyncExitStack) -> None:
        """Receive into ``store``; what is received stays until ``kept`` is closed."""
        self._store = store
        self._max_bytes = max_bytes
        self._caller = caller
        self._kept = kept
        self._upload: Upload | None = None
        self._left_bytes = max_bytes
        self._received: ReceivedSamples | None = None

    async def write(self, part: bytes) -> None:
        """Append a part. Raises InvalidUpload: the file is too large."""
        self._left_bytes -= len(part)
        if self._left_bytes < 0:
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
