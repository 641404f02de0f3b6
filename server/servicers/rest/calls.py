"""One call over HTTP, as the protocol's RPCs see it, and errors as JSON.

    request ──gate (tokens, certificates)──> body ──> message ──RPC(message, HttpCall)──> JSON
                 └──────────────────┴───────────┴──> {"error": ...} with the status of its kind

An RPC asks its call for what ``grpc.aio.ServicerContext`` offers. A call ends when its caller has
taken the answer, or has left; leaving cancels the RPC.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import grpc
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from braid.core.errors import PermissionDenied, Unauthenticated
from braid.server.observability.tracing import Telemetry
from braid.server.ports.http.application import READING, in_protocol, is_from_allowed
from braid.server.ports.http.connection import CallerConnection
from braid.server.ports.http.requests import is_from_here
from braid.server.security.gate import DescribedCall, Gate
from braid.server.security.tokens import Role, needed_role

Metadata = tuple[tuple[str, str], ...]

IsSignedIn = Callable[[Mapping[str, str]], bool]
"""Tells by a call's headers whether an admin's session sends it."""

_CLIENT_CLOSED_REQUEST = 499

STATUS: Mapping[grpc.StatusCode, int] = {
    grpc.StatusCode.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.OUT_OF_RANGE: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    grpc.StatusCode.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    grpc.StatusCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS: HTTPStatus.CONFLICT,
    grpc.StatusCode.ABORTED: HTTPStatus.CONFLICT,
    grpc.StatusCode.FAILED_PRECONDITION: HTTPStatus.CONFLICT,
    grpc.StatusCode.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    grpc.StatusCode.CANCELLED: _CLIENT_CLOSED_REQUEST,
    grpc.StatusCode.UNIMPLEMENTED: HTTPStatus.NOT_IMPLEMENTED,
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
    grpc.StatusCode.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
    grpc.StatusCode.DATA_LOSS: HTTPStatus.INTERNAL_SERVER_ERROR,
    grpc.StatusCode.UNKNOWN: HTTPStatus.INTERNAL_SERVER_ERROR,
}
"""Status of gRPC -> status of HTTP."""


class HttpCall:
    """Context of one call."""

    def __init__(self, request: Request) -> None:
        """Begin a call, in the task that answers it and that ends when its caller leaves."""
        self.connection: CallerConnection = request.state.connection
        self._client = request.client
        self._headers = request.headers
        self._metadata: Metadata | None = None
        self._callbacks: list[Callable[[Any], object]] = []
        self._trailing: Metadata = ()
        self._code = grpc.StatusCode.OK
        self._message = ""
        task = asyncio.current_task()
        assert task is not None
        self.connection.on_lost = task.cancel

    def peer(self) -> str:
        return "http:{}:{}".format(*(self._client or ("", 0)))

    def invocation_metadata(self) -> Metadata:
        if self._metadata is None:
            self._metadata = tuple(self._headers.items())
        return self._metadata

    def time_remaining(self) -> float | None:
        """None: HTTP knows no deadline but the parameter ``timeout``."""
        return None

    def set_trailing_metadata(self, metadata: Any) -> None:
        """Set headers of the answer, by their names in gRPC."""
        self._trailing = tuple(metadata)

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self._callbacks.append(callback)

    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        self._code, self._message = code, details
        self._trailing = tuple(trailing_metadata) or self._trailing
        raise grpc.aio.AbortError("aborted")

    def end(self) -> None:
        """End the call: its answer is taken, or never will be."""
        for callback in self._callbacks:
            callback(self)
        self._callbacks.clear()

    def headers(self) -> dict[str, str]:
        return {name: value for name, value in self._trailing if name == "braid-request-id"}

    def failure(self) -> Response:
        headers = self.headers()
        trailing = dict(self._trailing)
        if (after_ms := trailing.get("braid-retry-after-ms")) is not None:
            headers["retry-after"] = str(math.ceil(int(after_ms) / 1000))
            headers["braid-retry-after-ms"] = after_ms
        if self._code is grpc.StatusCode.UNAUTHENTICATED:
            headers["www-authenticate"] = "Bearer"
        status = STATUS.get(self._code, HTTPStatus.INTERNAL_SERVER_ERROR)
        return JSONResponse({"error": self._message}, status, headers)


@dataclass(frozen=True, slots=True)
class Admission:
    """Gate and trace of calls, the same as those of the main gRPC port."""

    gates: Sequence[Gate]
    telemetry: Telemetry | None
    needs_certificate: bool
    origins: Collection[str]
    is_signed_in: IsSignedIn  # those of whom it tells so need neither token nor certificate

    def admit(self, request: Request, method: str, call: HttpCall) -> None:
        """Let a call of an RPC (``method``: its full name) in by its head, or raise BraidError."""
        details = DescribedCall(method, tuple(call.invocation_metadata()))
        if not self.is_signed_in(request.headers):
            self._check_caller(details, call)
        is_safe = request.method in READING or is_from_here(request)
        if not is_safe and not is_from_allowed(request, self.origins):
            advice = "; BRAID_CORS_ORIGINS names those that may call"
            raise PermissionDenied(
                "this request comes from a page of another site"
                f"{advice if in_protocol(request.url.path) else ''}"
            )
        if self.telemetry is not None:
            self.telemetry.begin(details)

    def _check_caller(self, details: DescribedCall, call: HttpCall) -> None:
        for gate in self.gates:
            if (refusal := gate.refusal(details)) is not None:
                raise refusal
        is_open = needed_role(details.method) is Role.ANYONE
        if self.needs_certificate and not (is_open or call.connection.has_certificate):
            raise Unauthenticated("callers show a certificate here, as they do to the gRPC port")
