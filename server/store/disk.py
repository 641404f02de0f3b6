"""Failures of a store's disk: one error for callers, one line in the log."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from braid.core.disk import disk_failure
from braid.core.errors import DiskFailure

log = logging.getLogger("braid.store")


class DiskWatch:
    """The disk that holds a folder. Used by all threads that write there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._failure: DiskFailure | None = None  # logged, and not over yet

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Surround writes to the folder, or raise DiskFailure."""
        with self.reading():
            yield
        if self._failure is not None:
            self._failure = None
            log.info("the store can be written again")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Surround reads, whose success says nothing of the next write; or raise DiskFailure."""
        try:
            yield
        except (OSError, DBAPIError) as error:
            failure = disk_failure(error, self._folder)
            if failure is None:
                raise
            if self._failure is None or self._failure.trouble is not failure.trouble:
                log.error("the store cannot be written: %s", failure)
            self._failure = failure
            raise failure from error
