"""Errors of shared files, what counts what happens to them, and who sweeps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from braid.core.errors import StoreUnavailable


class SharedFilesAway(StoreUnavailable):
    """The shared files cannot be reached, or fail."""

    retry_after_s = 5.0

    def __init__(self) -> None:
        super().__init__(
            "the shared files (BRAID_FILES) do not answer; what serves goes on, try again"
        )


class FilesGone(StoreUnavailable):
    """Shared files that were put are gone again before rows needed them: put them once more."""

    def __init__(self) -> None:
        super().__init__("the shared files of this model were removed meanwhile; try again")


MaySweep = Callable[[], Awaitable[bool]]
"""Returns whether this is the server that sweeps now."""


async def always() -> bool:
    """Return True: any server may sweep at any time."""
    return True


class FilesObserver(Protocol):
    """Counts of what happens to shared files."""

    def cache_is(self, size_bytes: int, count: int) -> None:
        """Take the bytes and the number of files and artefacts in the cache."""

    def evicted(self, size_bytes: int) -> None:
        """Count a file that left the cache."""

    def fetched(self, kind: str, source: str, size_bytes: int) -> None:
        """Count a file that was asked for, and where it came from: cache, shared or nowhere."""

    def put(self, kind: str, size_bytes: int) -> None:
        """Count a file that was put into the shared place."""

    def failed(self, operation: str) -> None:
        """Count a put, fetch or sweep that failed."""

    def damaged(self) -> None:
        """Count an object or a file in the cache that was not what it should be."""

    def swept(self, count: int) -> None:
        """Count a sweep of the shared place, and the objects that it removed."""
