"""Errors of shared files."""

from __future__ import annotations

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
