"""Receiving a file: hashed and bounded as it comes, never whole in memory.

Leaving the block removes the file unless it was adopted. A killed server leaves a ``.part``,
which the next start sweeps away.
"""

import asyncio
import hashlib
import os
import re
import secrets
import threading
from pathlib import Path
from typing import Self

from braid.core.descriptors import Descriptor
from braid.core.errors import InvalidUpload, UploadTooLarge
from braid.server.store.disk import DiskWatch
from braid.server.store.quota import Quota
from braid.server.store.records import ReceivedUpload


class Upload:
    """File that is being received. Used by one task; the end waits for a cancelled write."""

    def __init__(
        self, folder: Path, limit_bytes: int, quota: Quota, disk: DiskWatch, caller: str = ""
    ) -> None:
        self._quota = quota
        self._caller = caller
        self._disk = disk
        self._path = folder / f"{secrets.token_hex(8)}.part"
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._hash = hashlib.sha256()
        self._lock = threading.Lock()  # writes run on threads and outlive a cancelled caller
        self._file: Descriptor | None = None

    async def __aenter__(self) -> Self:
        """Count the upload and create its file. Raises ResourceExhausted or DiskFailure."""
        self._quota.begin(self._caller)
        try:
            await asyncio.to_thread(self._quota.look)
            with self._disk.writing():
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                self._file = Descriptor(os.open(self._path, flags, 0o600))
        except BaseException:
            self._quota.end(self._caller)
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._quota.end(self._caller)
        await asyncio.shield(asyncio.to_thread(self._close))

    async def write(self, chunk: bytes) -> None:
        """Append a chunk; UploadTooLarge, ResourceExhausted: the store is full, or DiskFailure."""
        await asyncio.to_thread(self._write, chunk)

    async def finish(self, expected_sha256: str | None) -> ReceivedUpload:
        """Check the file and put it on disk for good; None: what it holds is checked later.

        Raises InvalidUpload: it is empty, or other bytes arrived than were sent. Or DiskFailure.
        """
        return await asyncio.to_thread(self._finish, expected_sha256)

    def _write(self, chunk: bytes) -> None:
        with self._lock:
            if self._file is None:
                return  # closed while this write waited for a thread
            if self._size_bytes + len(chunk) > self._limit_bytes:
                raise UploadTooLarge(self._limit_bytes)
            self._quota.take(len(chunk))
            self._hash.update(chunk)
            view = memoryview(chunk)
            with self._disk.writing():
                while view:
                    view = view[os.write(self._file.fileno(), view) :]
            self._size_bytes += len(chunk)

    def _finish(self, expected_sha256: str | None) -> ReceivedUpload:
        with self._lock:
            assert self._file is not None, "the upload is closed"
            digest = self._hash.hexdigest()
            if not self._size_bytes:
                raise InvalidUpload("the upload is empty; send the model file in chunks")
            expected_sha256 = digest if expected_sha256 is None else expected_sha256
            if not re.fullmatch(r"[0-9a-fA-F]{64}", expected_sha256):
                raise InvalidUpload(
                    "the footer's sha256 is not 64 hexadecimal digits; send the SHA-256 of all "
                    "chunks together"
                )
            if digest != expected_sha256.lower():
                raise InvalidUpload(
                    f"the upload arrived with SHA-256 {digest}, the footer says "
                    f"{expected_sha256.lower()}; send the file again"
                )
            with self._disk.writing():
                os.fsync(self._file.fileno())
                self._file.close()
            self._file = None
            return ReceivedUpload(self._path, digest, self._size_bytes)

    def _close(self) -> None:
        with self._lock:
            self._path.unlink(missing_ok=True)
            if self._file is not None:
                self._file.close()
                self._file = None
