"""Table of errors and gRPC statuses, and handlers that end calls with them.

A caller never sees a stack trace: what is not in the tree says "internal error" with the request
id under which the log has the rest.
"""

import inspect
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any, NoReturn, TypeAlias

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from braid.core import errors
from braid.core.shortage import shortage
from braid.server.observability.logs import new_request_id, printable, request_id

log = logging.getLogger("braid.rpc")

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

STATUS: Mapping[type[errors.BraidError], grpc.StatusCode] = {
    errors.BraidError: grpc.StatusCode.INTERNAL,
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UndecodableMessage: grpc.StatusCode.INVALID_ARGUMENT,
    errors.TooManyParts: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidTensor: grpc.StatusCode.INVALID_ARGUMENT,
    errors.OtherExtents: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidUpload: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidArtefact: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UploadTooLarge: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ModelImportError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnsupportedOperators: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ImportLimitExceeded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.ModelNotFound: grpc.StatusCode.NOT_FOUND,
    errors.VersionNotFound: grpc.StatusCode.NOT_FOUND,
    errors.JobNotFound: grpc.StatusCode.NOT_FOUND,
    errors.ScheduleNotFound: grpc.StatusCode.NOT_FOUND,
    errors.ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.QueueFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DeviceOutOfMemory: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DiskFailure: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.ModelLoading: grpc.StatusCode.UNAVAILABLE,
    errors.NoNodeUp: grpc.StatusCode.UNAVAILABLE,
    errors.Draining: grpc.StatusCode.UNAVAILABLE,
    errors.StoreUnavailable: grpc.StatusCode.UNAVAILABLE,
    errors.DatabaseUnavailable: grpc.StatusCode.UNAVAILABLE,
    errors.SystemShortage: grpc.StatusCode.UNAVAILABLE,
    errors.WorkerRestarting: grpc.StatusCode.UNAVAILABLE,
    errors.WorkerDied: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.RunStopped: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.RunTooLong: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.RequestCancelled: grpc.StatusCode.CANCELLED,
    errors.PreconditionFailed: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ModelQuarantined: grpc.StatusCode.FAILED_PRECONDITION,
    errors.DamagedArtefact: grpc.StatusCode.FAILED_PRECONDITION,
    errors.TakenOver: grpc.StatusCode.ABORTED,
    errors.NotOffered: grpc.StatusCode.UNIMPLEMENTED,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.SearchTooLarge: grpc.StatusCode.FAILED_PRECONDITION,
    errors.WorkerFault: grpc.StatusCode.INTERNAL,
    errors.DeviceLost: grpc.StatusCode.INTERNAL,
    errors.ImpossibleLatency: grpc.StatusCode.INTERNAL,
    errors.StartupError: grpc.StatusCode.INTERNAL,
}
"""Every class of the tree, each on a line of its own, so that a new one has to be decided on."""

# A status travels in headers, and clients take 8 KiB of them. Characters outside ASCII cost up to
# 12 bytes each (percent-encoded UTF-8), and a retry hint repeats the message in base64.
MAX_ASCII_CHARS, MAX_OTHER_CHARS = 3000, 400


def status_code(error: BaseException) -> grpc.StatusCode:
    """Return the status of an error: that of its class or of the nearest base that has one."""
    error = _told(error)
    for base in type(error).__mro__:
        if base in STATUS:
            return STATUS[base]
    return grpc.StatusCode.INTERNAL


def status_message(error: BaseException) -> str:
    """Return the message for the caller: that of BraidErrors, never that of other exceptions."""
    error = _told(error)
    if isinstance(error, errors.BraidError) and type(error) is not errors.BraidError:
        text = str(error)
        return printable(text, MAX_ASCII_CHARS if text.isascii() else MAX_OTHER_CHARS)
    return f"internal error (request id {request_id.get() or 'unknown'})"


def _told(error: BaseException) -> BaseException:
    """Return the error that callers are told of: a lack of descriptors is no internal error."""
    return (isinstance(error, OSError) and shortage(error)) or error


def wire_error(error: BaseException) -> tuple[int, str]:
    """Return code (a ``google.rpc.Code``) and message of an error inside a stream's answer."""
    _log(error)
    return status_code(error).value[0], status_message(error)


async def abort(context: Context, error: BaseException) -> NoReturn:
    """End the RPC with the status of ``error``.

    Trailing metadata carries ``braid-request-id`` and, where waiting helps, the hint both as
    ``braid-retry-after-ms`` and as ``google.rpc.RetryInfo`` in ``grpc-status-details-bin``.
    """
    _log(error)
    code, message = status_code(error), status_message(error)
    trailing: list[tuple[str, str | bytes]] = [("braid-request-id", request_id.get())]
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        retry_after_ms = max(1, round(retry_after_s * 1000))
        trailing.append(("braid-retry-after-ms", str(retry_after_ms)))
        trailing.append(("grpc-status-details-bin", _retry_details(code, message, retry_after_ms)))
    await context.abort(code, message, tuple(trailing))


@dataclass(slots=True)
class answering:
    """Surround the body of a servicer's method: sets a request id, maps errors to statuses."""

    _context: Context

    async def __aenter__(self) -> str:
        """Return the call's request id, which its lines in the log carry from now on."""
        current = new_request_id()
        request_id.set(current)
        self._context.set_trailing_metadata((("braid-request-id", current),))
        return current

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """End the call with the error's status; cancellations and finished statuses pass."""
        if error is None or isinstance(error, grpc.aio.AbortError):
            return
        if isinstance(error, Exception):
            await abort(self._context, error)


def refusing(error: BaseException) -> Handler:
    """Return a handler of any arity that ends a call with an error and reads no message."""

    async def refuse(_: AsyncIterator[Any], context: Any) -> None:
        async with answering(context):
            raise error

    return grpc.stream_stream_rpc_method_handler(refuse)


@lru_cache(maxsize=32)
def _retry_details(code: grpc.StatusCode, message: str, retry_after_ms: int) -> bytes:
    """Return a ``google.rpc.Status`` with the hint; in overload thousands are alike."""
    delay = duration_pb2.Duration()
    delay.FromMilliseconds(retry_after_ms)
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(code=code.value[0], message=message, details=[detail])
    return bytes(status.SerializeToString())


def _log(error: BaseException) -> None:
    """Log a BraidError in one line; anything else is a bug and is logged in full."""
    code = status_code(error)
    if code is grpc.StatusCode.INTERNAL:
        log.error("internal error", exc_info=error)
    elif log.isEnabledFor(logging.DEBUG):
        # Not the message: it repeats what the caller sent, and the caller has it.
        log.debug("refused", extra={"status": code.name, "kind": type(error).__name__})


Behaviour = Callable[[Any, Any], Any]
"""Function of a request, or a stream of them, and the context of its call."""


def handlers_of(
    service: ServiceDescriptor, *parts: object, without: Collection[str] = ()
) -> dict[str, Handler]:
    """Return handlers of a service's methods by name, each in one of ``parts``, ``answering``."""
    return {
        method.name: _MAKERS[method.client_streaming, method.server_streaming](
            _answering(
                next(getattr(part, method.name) for part in parts if hasattr(part, method.name))
            ),
            GetMessageClass(method.input_type).FromString,
            GetMessageClass(method.output_type).SerializeToString,
        )
        for method in service.methods
        if method.name not in without
    }


def _answering(behaviour: Behaviour) -> Behaviour:
    async def method(request: Any, context: Context) -> Any:
        async with answering(context):
            return await behaviour(request, context)

    async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
        async with answering(context), aclosing(behaviour(request, context)) as answers:
            async for answer in answers:
                yield answer
                del answer

    return stream if inspect.isasyncgenfunction(behaviour) else method


_MAKERS: dict[tuple[bool, bool], Callable[..., Handler]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def with_behaviour(
    handler: Handler, behaviour: Behaviour, read: Callable[[bytes], Any] | None = None
) -> Handler:
    make = _MAKERS[handler.request_streaming, handler.response_streaming]
    return make(behaviour, read or handler.request_deserializer, handler.response_serializer)
