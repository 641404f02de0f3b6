"""Table of all calls of the wire, and the connection that both clients make them on.

A call knows its messages, which of its failures may be tried again, and what NOT_FOUND means.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from braid_client import errors
from braid_client.errors import ClientClosed, JobNotFound, ModelNotFound, NotFound, ScheduleNotFound
from braid_client.proxies import proxy_to
from braid_client.retries import Attempts, Retry, RetryPolicy
from braid_client.security import Tls
from braid_client.streams import Feed, as_async
from braid_client.wire import admin_pb2, inference_pb2

DEFAULT_ADDRESS: Final = "127.0.0.1:8001"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Deadlines, in seconds, of calls that are given none of their own."""

    call_s: float = 60.0
    upload_s: float = 3600.0
    stream_s: float = 24 * 3600.0  # watching a job, and streams of requests


@dataclass(frozen=True, slots=True)
class Rpc:
    """A call of the wire: path, messages, retries, meaning of NOT_FOUND."""

    path: str
    kind: str  # of gRPC: "unary_unary", "unary_stream", "stream_unary", "stream_stream"
    request: type[Message]
    response: type[Message]
    retry: Retry
    not_found: type[NotFound]
    in_bytes: bool  # requests are given, and responses returned, as bytes of their messages

    def read(self, data: Any) -> Any:
        """Return the response in what a server sent, or raise ServerError."""
        try:
            return data if self.in_bytes and data is not None else self.response.FromString(data)
        except (DecodeError, TypeError):  # None: an OK without a response
            raise errors.ServerError(errors.UNREADABLE) from None


def _rpc(
    service: ServiceDescriptor,
    name: str,
    retry: Retry = Retry.NEVER,
    not_found: type[NotFound] = ModelNotFound,
    *,
    in_bytes: bool = False,
) -> Rpc:
    method = service.methods_by_name[name]
    streams = (method.client_streaming, method.server_streaming)
    return Rpc(
        f"/{service.full_name}/{name}",
        "_".join("stream" if is_stream else "unary" for is_stream in streams),
        GetMessageClass(method.input_type),
        GetMessageClass(method.output_type),
        retry,
        not_found,
        in_bytes,
    )


_INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
_ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]

RPCS: Final = (
    INFER := _rpc(_INFERENCE, "Infer", Retry.INFER, in_bytes=True),
    INFER_STREAM := _rpc(_INFERENCE, "InferStream", in_bytes=True),
    REGISTER_MODEL := _rpc(_ADMIN, "RegisterModel"),
    WATCH_JOB := _rpc(_ADMIN, "WatchJob", Retry.READ, JobNotFound),
    CANCEL_JOB := _rpc(_ADMIN, "CancelJob", not_found=JobNotFound),
    LIST_JOBS := _rpc(_ADMIN, "ListJobs", Retry.READ),
    LIST_MODELS := _rpc(_ADMIN, "ListModels", Retry.READ),
    GET_MODEL := _rpc(_ADMIN, "GetModel", Retry.READ),
    DELETE_MODEL := _rpc(_ADMIN, "DeleteModel"),
    GET_SERVING := _rpc(_ADMIN, "GetServing", Retry.READ),
    SET_SERVING := _rpc(_ADMIN, "SetServing"),
    GET_SCHEDULE := _rpc(_ADMIN, "GetSchedule", Retry.READ, ScheduleNotFound),
    SCHEDULE_AGAIN := _rpc(_ADMIN, "ScheduleAgain"),
    PIN_PLAN := _rpc(_ADMIN, "PinPlan"),
    LIST_NODES := _rpc(_ADMIN, "ListNodes", Retry.READ),
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


def channel_options(address: str) -> tuple[tuple[str, int], ...]:
    """Return the options of a channel to a server: those of the way there, too."""
    return (*CHANNEL_OPTIONS, ("grpc.enable_http_proxy", int(proxy_to(address) != "")))


class Connection:
    """Channel to one server, with deadlines and retries; the clients add how to wait.

    ``AsyncClient`` awaits; ``Client`` blocks, so that its coroutines end within one step.
    """

    _transport: Any  # the module ``grpc`` or ``grpc.aio``
    _sleep: Callable[[float], Awaitable[None]]
    _in_thread: Callable[..., Awaitable[Any]]  # calls a function that waits for the disk
    _answer: Callable[[Any], Awaitable[Any]]  # to a call with one request and one answer
    _answers: Callable[[Any], AsyncGenerator[Any, None]]  # to other calls

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
        options = channel_options(address)
        if credentials is None:
            self._channel = self._transport.insecure_channel(address, options=options)
        else:
            self._channel = self._transport.secure_channel(address, credentials, options=options)
        self._calls = {
            # The answer to an upload is read as a stream: grpc cannot cancel a call that blocks.
            rpc.path: getattr(self._channel, rpc.kind.replace("stream_unary", "stream_stream"))(
                rpc.path,
                request_serializer=None if rpc.in_bytes else rpc.request.SerializeToString,
            )
            for rpc in RPCS
        }

    def _timeout_s(self, rpc: Rpc, timeout_s: float | None) -> float:
        """Seconds that a call may take: as given, else as usual for its kind."""
        if timeout_s is not None:
            return timeout_s
        if rpc.kind == "unary_unary":
            return self.timeouts.call_s
        return self.timeouts.upload_s if rpc.kind == "stream_unary" else self.timeouts.stream_s

    def _attempts(self, rpc: Rpc, timeout_s: float | None) -> Attempts:
        return Attempts(self.retry, rpc.retry, self._timeout_s(rpc, timeout_s))

    def _error(self, rpc: Rpc, failure: grpc.RpcError) -> errors.BraidError:
        return errors.error_of_call(failure, rpc.not_found, self.address)

    def _start(self, rpc: Rpc, request: Any, timeout_s: float) -> Any:
        """Call with one request, or with an iterator of them; ``rpc.read`` reads the responses."""
        if self._closed:
            raise ClientClosed
        return self._calls[rpc.path](request, timeout=timeout_s, metadata=self._metadata)

    async def _call(self, rpc: Rpc, request: Message | bytes, timeout_s: float | None) -> Any:
        """Call until an answer comes or a failure that is not to be retried."""
        attempts = self._attempts(rpc, timeout_s)
        while True:
            try:
                call = self._start(rpc, request, attempts.remaining_s())
                return rpc.read(await self._answer(call))
            except grpc.RpcError as failure:
                error = self._error(rpc, failure)
                delay = attempts.delay_after(error)
                if delay is None:
                    raise error from failure
            await self._sleep(delay)

    async def _stream(
        self, rpc: Rpc, request: Message | Feed[Any], timeout_s: float
    ) -> AsyncGenerator[Any, None]:
        """Yield the answers of one call; raise what its requests raised, or its failure."""
        feed = request if isinstance(request, Feed) else Feed(as_async(()))
        call = self._start(rpc, request, timeout_s)
        feed.feeds(call.cancel)
        try:
            async with aclosing(self._answers(call)) as answers:
                async for answer in answers:
                    yield rpc.read(answer)
        except grpc.RpcError as failure:
            if feed.failure is None:
                raise self._error(rpc, failure) from failure
        except asyncio.CancelledError:  # also that of grpc.aio for a feed that cancels its call
            if feed.failure is None:
                raise
        finally:
            call.cancel()
        if feed.failure is not None:
            raise feed.failure
