"""Table of all calls of the wire, and the connection that both clients make them on.

A call knows its messages, which of its failures may be tried again, and what NOT_FOUND means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar

import grpc
from google.protobuf.message import Message

from braid_client.errors import ClientClosed, JobNotFound, ModelNotFound, NotFound, ScheduleNotFound
from braid_client.retries import Attempts, Retry, RetryPolicy
from braid_client.security import Tls
from braid_client.wire import admin_pb2 as admin
from braid_client.wire import inference_pb2 as inference

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

DEFAULT_ADDRESS: Final = "127.0.0.1:8001"

Kind = Literal["unary_unary", "unary_stream", "stream_unary", "stream_stream"]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Deadlines, in seconds, of calls that are given none of their own."""

    call_s: float = 60.0
    upload_s: float = 3600.0
    stream_s: float = 24 * 3600.0  # watching a job, and streams of requests


@dataclass(frozen=True, slots=True)
class Rpc(Generic[Request, Response]):
    """A call of the wire: path, messages, retries, meaning of NOT_FOUND."""

    path: str
    request: type[Request]
    response: type[Response]
    kind: Kind = "unary_unary"
    in_bytes: bool = False  # requests and responses are given as bytes of their messages
    retry: Retry = Retry.NEVER
    not_found: type[NotFound] = ModelNotFound


_INFERENCE = "/braid.v1.InferenceService/"
_ADMIN = "/braid.v1.AdminService/"

INFER: Rpc[Any, Any] = Rpc(
    _INFERENCE + "Infer",
    inference.InferRequest,
    inference.InferResponse,
    in_bytes=True,
    retry=Retry.INFER,
)
INFER_STREAM: Rpc[Any, Any] = Rpc(
    _INFERENCE + "InferStream",
    inference.InferRequest,
    inference.InferStreamResponse,
    kind="stream_stream",
    in_bytes=True,
)
REGISTER_MODEL = Rpc(
    _ADMIN + "RegisterModel",
    admin.RegisterModelRequest,
    admin.RegisterModelResponse,
    kind="stream_unary",
)
WATCH_JOB = Rpc(
    _ADMIN + "WatchJob",
    admin.WatchJobRequest,
    admin.Job,
    kind="unary_stream",
    retry=Retry.READ,
    not_found=JobNotFound,
)
CANCEL_JOB = Rpc(_ADMIN + "CancelJob", admin.CancelJobRequest, admin.Job, not_found=JobNotFound)
LIST_JOBS = Rpc(
    _ADMIN + "ListJobs", admin.ListJobsRequest, admin.ListJobsResponse, retry=Retry.READ
)
LIST_MODELS = Rpc(
    _ADMIN + "ListModels", admin.ListModelsRequest, admin.ListModelsResponse, retry=Retry.READ
)
GET_MODEL = Rpc(_ADMIN + "GetModel", admin.GetModelRequest, admin.Model, retry=Retry.READ)
DELETE_MODEL = Rpc(_ADMIN + "DeleteModel", admin.DeleteModelRequest, admin.DeleteModelResponse)
GET_SERVING = Rpc(
    _ADMIN + "GetServing", admin.GetServingRequest, admin.ServingConfig, retry=Retry.READ
)
SET_SERVING = Rpc(_ADMIN + "SetServing", admin.ServingConfig, admin.ServingConfig)
GET_SCHEDULE = Rpc(
    _ADMIN + "GetSchedule",
    admin.GetScheduleRequest,
    admin.GetScheduleResponse,
    retry=Retry.READ,
    not_found=ScheduleNotFound,
)
SCHEDULE_AGAIN = Rpc(_ADMIN + "ScheduleAgain", admin.ScheduleAgainRequest, admin.Job)
LIST_NODES = Rpc(
    _ADMIN + "ListNodes", admin.ListNodesRequest, admin.ListNodesResponse, retry=Retry.READ
)

RPCS: Final[tuple[Rpc[Any, Any], ...]] = (
    INFER,
    INFER_STREAM,
    REGISTER_MODEL,
    WATCH_JOB,
    CANCEL_JOB,
    LIST_JOBS,
    LIST_MODELS,
    GET_MODEL,
    DELETE_MODEL,
    GET_SERVING,
    SET_SERVING,
    GET_SCHEDULE,
    SCHEDULE_AGAIN,
    LIST_NODES,
)

CHANNEL_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.max_send_message_length", -1),  # the server has the limits
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", 30_000),  # notice a peer that vanished while a call is open
    ("grpc.keepalive_timeout_ms", 10_000),
    # Be back soon after a restart; gRPC's own backoff grows to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Whatever its name says: how long one attempt to connect may take, handshakes included. The
    # usual number of attempts fits into the usual deadline, so that an address that answers
    # nothing is UNAVAILABLE, not late.
    ("grpc.min_reconnect_backoff_ms", 8_000),
    ("grpc.enable_retries", 0),  # retries are ours: see braid_client.retries
)


class Connection:
    """Channel to one server, with deadlines and retries; the clients add what waits."""

    _transport: Any  # the module ``grpc`` or ``grpc.aio``

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        timeouts: Timeouts | None = None,
        retry: RetryPolicy | None = None,
        token: str | None = None,
        tls: Tls | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.address = address
        self.timeouts = timeouts or Timeouts()
        self.retry = retry or RetryPolicy()
        own = (("authorization", f"Bearer {token}"),) if token else ()
        self._metadata = (*metadata, *own)
        self._closed = False
        if tls is not None:
            if credentials is not None:
                raise ValueError("give credentials or tls, not both")
            credentials = tls.credentials()
        options = CHANNEL_OPTIONS
        if credentials is None:
            self._channel = self._transport.insecure_channel(address, options=options)
        else:
            self._channel = self._transport.secure_channel(address, credentials, options=options)
        self._calls = {
            rpc.path: getattr(self._channel, rpc.kind)(
                rpc.path,
                request_serializer=None if rpc.in_bytes else rpc.request.SerializeToString,
                response_deserializer=None if rpc.in_bytes else rpc.response.FromString,
            )
            for rpc in RPCS
        }

    def _timeout_s(self, rpc: Rpc[Any, Any], timeout_s: float | None) -> float:
        """Seconds that a call may take: as given, else as usual for its kind."""
        if timeout_s is not None:
            return timeout_s
        if rpc.kind == "unary_unary":
            return self.timeouts.call_s
        return self.timeouts.upload_s if rpc.kind == "stream_unary" else self.timeouts.stream_s

    def _attempts(self, rpc: Rpc[Any, Any], timeout_s: float | None) -> Attempts:
        return Attempts(self.retry, rpc.retry, self._timeout_s(rpc, timeout_s))

    def _start(self, rpc: Rpc[Any, Any], request: Any, timeout_s: float) -> Any:
        """Call with one request, or with an iterator of them."""
        if self._closed:
            raise ClientClosed
        return self._calls[rpc.path](request, timeout=timeout_s, metadata=self._metadata)
