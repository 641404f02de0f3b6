"""Failures of an object store: errors for callers, one line in the log.

    obstore's exceptions ──failure_of──> FileNotFoundError   there is no such object
                                         SharedFilesAway     it does not answer, or not properly
                                         ResourceExhausted   it answers, but takes nothing more

Their texts hold addresses and keys, and queries of Azure's URLs a signature: callers read none of
it, and the log no query.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from braid.core.disk import disk_failure
from braid.core.errors import BraidError, DiskTrouble, ResourceExhausted
from braid.server.fleet.records import SharedFilesAway

log = logging.getLogger("braid.files")

FULL_RETRY_S = 30.0

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_FULL_CODES = re.compile(r"StorageFull|QuotaExceeded|InsufficientCapacity|InsufficientStorage")


def status_of(error: BaseException) -> int:
    """HTTP status that an object store answered with; 0: it did not answer."""
    match = _STATUS.search(str(error.__cause__ if isinstance(error, BraidError) else error))
    return int(match[1]) if match else 0


def reason_of(error: BaseException) -> str:
    """Line for the log: what failed, without queries of URLs."""
    code = _CODE.search(str(error))
    first = str(error).split("\n", 1)[0].split("<?xml", 1)[0]
    return re.sub(r"\?\S+", "", first)[:300].rstrip(": ") + (f" ({code[1]})" if code else "")


def is_refusal(error: BaseException) -> bool:
    """True if the credentials are wrong, or allow too little."""
    refused = isinstance(error, PermissionDeniedError | UnauthenticatedError)
    return refused or status_of(error) in (401, 403)


def lacks_bucket(error: BaseException) -> bool:
    return (
        re.search(r"NoSuchBucket|ContainerNotFound|bucket does not exist", str(error)) is not None
    )


def is_full(error: BaseException) -> bool:
    """True if an object store says that it has no room for an object, or a shared folder's disk."""
    failure = disk_failure(error, Path("/"), by_text=True)
    is_disk = failure is not None and failure.trouble in (DiskTrouble.FULL, DiskTrouble.QUOTA)
    return is_disk or status_of(error) == 507 or _FULL_CODES.search(str(error)) is not None


def no_room() -> ResourceExhausted:
    return ResourceExhausted(
        "the shared files (BRAID_FILES) take nothing more: they are full, or over their quota; "
        "delete models or make room there, then try again",
        FULL_RETRY_S,
    )


class FailureLog:
    """The failures of one shared place: the first is logged, and the recovery."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._is_failing = False

    @contextmanager
    def watching(self, what: str) -> Iterator[None]:
        """Surround a call of the object store.

        Raises:
            FileNotFoundError: there is no such object.
            AlreadyExistsError: there is one, and none was wanted.
            NotSupportedError: the place has no such request.
            SharedFilesAway, ResourceExhausted: see the header.
        """
        try:
            yield
        except FileNotFoundError as error:
            if not lacks_bucket(error):
                raise
            raise self._failed(what, error) from error
        except (AlreadyExistsError, NotSupportedError):  # answers
            raise
        except (BaseError, OSError, TimeoutError) as error:
            raise self._failed(what, error) from error
        if self._is_failing:
            self._is_failing = False
            log.info("the shared files answer again", extra={"files": self._where})

    def _failed(self, what: str, error: BaseException) -> BraidError:
        if not self._is_failing:
            extra = {"files": self._where, "what": what, "reason": reason_of(error)}
            log.error("the shared files fail", extra=extra)
        self._is_failing = True
        return no_room() if is_full(error) else SharedFilesAway()
