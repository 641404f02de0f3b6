"""Table of all calls of the wire, and options of a channel, for both clients.

A call knows its messages, which of its failures may be tried again, and what NOT_FOUND means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar

from google.protobuf.message import Message

from braid_client.errors import JobNotFound, ModelNotFound, NotFound, ScheduleNotFound
from braid_client.retries import Retry
from braid_client.wire import admin_pb2 as admin
from braid_client.wire import inference_pb2 as inference

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

DEFAULT_ADDRESS: Final = "127.0.0.1:8001"

DAY_S: Final = 24 * 3600.0

Kind = Literal["unary_unary", "unary_stream", "stream_unary", "stream_stream"]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Deadlines, in seconds, of calls that are given none of their own."""

    call_s: float = 60.0
    upload_s: float = 3600.0
    stream_s: float = DAY_S  # watching a job, and streams of requests


@dataclass(frozen=True, slots=True)
class Rpc(Generic[Request, Response]):
    """A call of the wire: path, messages, retries, meaning of NOT_FOUND."""

    path: str
    request: type[Request]
    response: type[Response]
    kind: Kind = "unary_unary"
    retry: Retry = Retry.NEVER
    not_found: type[NotFound] = ModelNotFound


_INFERENCE = "/braid.v1.InferenceService/"
_ADMIN = "/braid.v1.AdminService/"

INFER = Rpc(
    _INFERENCE + "Infer", inference.InferRequest, inference.InferResponse, retry=Retry.INFER
)
INFER_STREAM = Rpc(
    _INFERENCE + "InferStream",
    inference.InferRequest,
    inference.InferStreamResponse,
    kind="stream_stream",
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


def open_calls(channel: Any) -> Mapping[str, Any]:
    """Functions of a channel of ``grpc`` or ``grpc.aio`` that make each call, by path."""
    return {
        rpc.path: getattr(channel, rpc.kind)(
            rpc.path,
            request_serializer=rpc.request.SerializeToString,
            response_deserializer=rpc.response.FromString,
        )
        for rpc in RPCS
    }
