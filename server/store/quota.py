"""Limits of a store: bytes on disk, model versions, uploads at once."""

import os
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from braid.core.errors import ResourceExhausted

BUSY_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Limits that an operator sets."""

    max_bytes: int = 0  # of the whole folder; 0: as much as the disk has
    max_models: int = 1000  # versions, of all names together
    max_uploads: int = 8  # at once
    max_caller_uploads: int = 6  # at once, of one caller
    kept_jobs: int = 1000  # that have ended


class Quota:
    """Counts what comes in: uploads on the event loop, bytes on the threads that write them."""

    def __init__(self, root: Path, limits: StoreLimits) -> None:
        self._root = root
        self._limits = limits
        self._uploads: Counter[str] = Counter()  # under way, by caller
        self._lock = threading.Lock()  # for the bytes; a look at a large store takes long
        self._used_bytes = 0  # as of the last upload that began, and what was written since

    @property
    def has_uploads(self) -> bool:
        return self._uploads.total() > 0

    def begin(self, caller: str = "") -> None:
        """Count an upload that begins; caller "" is the server. ResourceExhausted: too many."""
        total, of_caller = self._uploads.total(), self._uploads[caller]
        if total >= self._limits.max_uploads:
            raise ResourceExhausted(
                f"{total} uploads are under way already; try again when one has ended",
                retry_after_s=BUSY_RETRY_S,
            )
        if caller and of_caller >= self._limits.max_caller_uploads:
            raise ResourceExhausted(
                f"{of_caller} uploads of this caller are under way already, and "
                "BRAID_MAX_CALLER_UPLOADS allows no more; try again when one has ended",
                retry_after_s=BUSY_RETRY_S,
            )
        self._uploads[caller] += 1

    def look(self) -> None:
        if self._limits.max_bytes:
            with self._lock:
                self._used_bytes = size_on_disk(self._root)

    def end(self, caller: str = "") -> None:
        self._uploads[caller] -= 1
        self._uploads += Counter()  # forgets callers without any

    def take(self, size_bytes: int) -> None:
        """Count bytes that are about to be written. ResourceExhausted: the store is too large."""
        limit = self._limits.max_bytes
        with self._lock:
            self._used_bytes += size_bytes
            if limit and self._used_bytes > limit:
                raise ResourceExhausted(
                    f"the store may take {limit} bytes on disk (BRAID_MAX_STORE_BYTES) and this "
                    "upload would exceed them; delete models first"
                )

    def check_models(self, present: int) -> None:
        if present >= self._limits.max_models:
            raise ResourceExhausted(
                f"{present} model versions are registered, and BRAID_MAX_MODELS allows no more; "
                "delete some first"
            )


def size_on_disk(root: Path) -> int:
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total
