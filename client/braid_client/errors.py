"""All errors of the SDK, in one tree.

    BraidError
    ├── InvalidArgument         the request is wrong: a tensor, a name, an upload
    ├── NotFound
    │   ├── ModelNotFound       no such model or version
    │   ├── JobNotFound
    │   └── ScheduleNotFound    no schedule (yet) for this device and batch size
    ├── ResourceExhausted       a bounded resource is used up, or a message is too large
    │   └── QueueFull           waiting helps: ``retry_after_s`` says how long
    ├── Unavailable             not reachable, loading, draining or restarting: true for a moment
    ├── DeadlineExceeded
    ├── Cancelled
    ├── FailedPrecondition      legal, but not in the present state
    ├── AlreadyExists
    ├── Unauthenticated
    ├── PermissionDenied
    ├── Unimplemented           the server does not know this call: another version
    ├── ServerError             the server failed in a way it should not
    ├── ClientClosed            the client was closed before the call
    └── JobFailed               a registration that was waited for FAILED or was CANCELLED

Where the error came as the status of a call, ``code`` is its gRPC status code and ``request_id``
names the request in the server's logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import grpc

from braid_client.proxies import of_proxy

if TYPE_CHECKING:
    from braid_client.records import Job

REQUEST_ID = "braid-request-id"
"""Trailing metadata: the server's name for the request."""

RETRY_AFTER_MS = "braid-retry-after-ms"
"""Trailing metadata: when to try again; an integer, as ASCII text."""


WATCH_CUT = "the server ended the watch before the job ended"
STREAM_CUT = "the server ended the stream before it answered every request"
UNREADABLE = "the server's answer cannot be decoded"


class BraidError(Exception):
    """Base class of all errors that the SDK raises on purpose."""

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode | None = None,
        request_id: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.request_id = request_id
        self.retry_after_s = retry_after_s


class InvalidArgument(BraidError, ValueError):
    """The request is wrong; the message says what to change."""


class NotFound(BraidError):
    """The object of the request does not exist."""


class ModelNotFound(NotFound):
    """The model does not exist, or the version of it does not."""


class JobNotFound(NotFound):
    """The job does not exist."""


class ScheduleNotFound(NotFound):
    """The model has no schedule (yet) for this device and batch size."""


class ResourceExhausted(BraidError):
    """A bounded resource of the server is used up, or a message is over its limit."""


class QueueFull(ResourceExhausted):
    """The server is too busy and said, in ``retry_after_s``, when to try again."""


class Unavailable(BraidError):
    """The server cannot be reached or cannot answer for a moment."""


class DeadlineExceeded(BraidError):
    """The call's deadline passed before the answer came."""


class Cancelled(BraidError):
    """The call was cancelled."""


class FailedPrecondition(BraidError):
    """The request is legal, but the present state does not allow it."""


class AlreadyExists(BraidError):
    """The object to create exists already."""


class Unauthenticated(BraidError):
    """The server wants credentials that were not given or not accepted."""


class PermissionDenied(BraidError):
    """The credentials do not allow this call."""


class Unimplemented(BraidError):
    """The server does not know this call; it runs another version of Braid."""


class ServerError(BraidError):
    """The server failed in a way it should not; its logs know more under ``request_id``."""


class ClientClosed(BraidError):
    """The client was closed before the call; make another one."""

    def __init__(self) -> None:
        super().__init__("the client is closed; make another one to call the server")


class JobFailed(BraidError):
    """The registration that a caller waited for ended FAILED or CANCELLED, see ``job``."""

    def __init__(self, job: Job) -> None:
        reason = job.message or job.detail or "no reason given"
        super().__init__(f"job {job.id} of model {job.model!r} {job.state.lower()}: {reason}")
        self.job = job


ERROR_CLASSES: Mapping[grpc.StatusCode, type[BraidError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.OUT_OF_RANGE: InvalidArgument,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.ABORTED: FailedPrecondition,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
    grpc.StatusCode.INTERNAL: ServerError,
    grpc.StatusCode.UNKNOWN: ServerError,
    grpc.StatusCode.DATA_LOSS: ServerError,
}

_BY_NUMBER: Mapping[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


def error_of_call(call: grpc.RpcError, not_found: type[NotFound], address: str) -> BraidError:
    """Translate a failed call.

    Args:
        call: what ``grpc`` or ``grpc.aio`` raised, or a call that has failed.
        not_found: class for NOT_FOUND; the caller knows what it asked for.
        address: of the server, as the caller names it.
    """
    pairs: Iterable[Any] = call.trailing_metadata() or ()
    trailing = dict(pairs)
    way = "" if REQUEST_ID in trailing else of_proxy(address)
    return make_error(
        call.code(),
        f"{call.details() or ''}{way}",
        not_found=not_found,
        request_id=_text(trailing.get(REQUEST_ID)),
        retry_after_s=_seconds(_text(trailing.get(RETRY_AFTER_MS))),
    )


def error_of_code(number: int, message: str, request_id: str) -> BraidError:
    """Translate the error of one request on a stream; ``number`` is a ``google.rpc.Code``."""
    code = _BY_NUMBER.get(number, grpc.StatusCode.UNKNOWN)
    return make_error(code, message, not_found=ModelNotFound, request_id=request_id)


def make_error(
    code: grpc.StatusCode,
    message: str,
    *,
    not_found: type[NotFound] = NotFound,
    request_id: str | None = None,
    retry_after_s: float | None = None,
) -> BraidError:
    kind = ERROR_CLASSES.get(code, ServerError)
    if kind is NotFound:
        kind = not_found
    if kind is ResourceExhausted and retry_after_s is not None:
        kind = QueueFull
    return kind(
        _with_remedy(message) or code.name.lower().replace("_", " "),
        code=code,
        request_id=request_id,
        retry_after_s=retry_after_s,
    )


_REMEDIES = {
    re.compile(r"Trying to connect an http1\.x server|Failed parsing HTTP/2"): (
        "what answers there does not speak gRPC; is it the server's HTTP port? gRPC has a port of "
        "its own, 8001 unless BRAID_GRPC_PORT says otherwise"
    ),
    re.compile(r"Received message larger than max"): (
        "send fewer rows in a request, or raise BRAID_MAX_MESSAGE_BYTES on the server"
    ),
}
"""Advice for messages that gRPC itself makes, by pattern."""


def _with_remedy(message: str) -> str:
    for pattern, remedy in _REMEDIES.items():
        if pattern.search(message):
            return f"{message}; {remedy}"
    return message


def _text(value: str | bytes | None) -> str | None:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def _seconds(milliseconds: str | None) -> float | None:
    """Read seconds from a hint in milliseconds; None if the hint does not parse."""
    if milliseconds is None or not re.fullmatch("[0-9]{1,9}", milliseconds):
        return None
    return int(milliseconds) / 1000
