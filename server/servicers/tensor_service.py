"""Tensor service: inference requests of every protocol, from gRPC's bytes to the answer's bytes.

    call ──Methods──> refused unread while every model's queue is full
      └──TensorProtocol.read──> its message ──given──> GivenRequest ──check──> CheckedRequest
           ──> waits while its caller holds too much memory ──Batcher──> InferenceResult
           ──GivenRequest.reply──> bytes of the answer, as soon as its batch has ended
           ──GivenRequest.reply_later──> the answer, made from copies in turns with others' work

gRPC asks for a method's handler when a call's headers have arrived, and reads its message only if
the handler wants it. Reading a tensor that is refused afterwards costs more than everything else
about the refusal, and in overload the device's batches wait for that time.

Each request is counted once, under the status that it ended with, also when its message could not
be used or its caller went away.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from time import monotonic, perf_counter
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.descriptor import Descriptor

from braid.core.errors import BraidError, DeadlineExceeded, OtherExtents, RequestCancelled
from braid.core.pieces import Turns, Work
from braid.core.strings import Strings
from braid.server.inference.call_memory import Account, Answer, CallMemory, Charge, LaterReply
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import (
    CheckedRequest,
    GivenRequest,
    InferenceResult,
    by_itself,
    check_request,
    in_own_shapes,
    with_strings,
)
from braid.server.models.serving_models import ResolvedModel, ServingModels
from braid.server.observability import tracing
from braid.server.observability.series.requests import ReplicaMetrics
from braid.server.rpc.status import Context, Handler, answering, refusing, status_code, wire_error
from braid.server.rpc.wire_parts import counted
from braid.server.servicers.streams import answers

Message = TypeVar("Message")
"""A protocol's inference request, as its ``read`` returns it."""


class TensorProtocol(Protocol[Message]):
    """Methods and messages of one protocol."""

    service: str  # full name
    unary: str  # name of the method that takes one request
    stream: str  # name of the method that takes a stream of them
    request: Descriptor
    tensor: Descriptor | None  # of the messages within it that hold numbers of tensors
    in_order: bool  # a stream's answers come in the order of its requests, or as they are ready

    def read(self, data: bytes, /) -> Message:
        """Parse a request; raises InvalidRequest, and whatever protobuf does."""

    def unpacking(self, message: Message, /) -> Work[Message] | None:
        """Work before ``given`` that may take long; None: none. BraidError: contradictions."""

    def model_of(self, message: Message, /) -> tuple[str, str]:
        """Name and version of the model that a request is for."""

    def given(self, message: Message, context: Context, in_stream: bool, /) -> GivenRequest:
        """The request in the server's terms, with ``reply`` or ``reply_later``; or BraidError."""

    def failure(self, message: Message, code: int, reason: str, /) -> bytes:
        """Return the answer of a stream to a request that failed; ``code`` of google.rpc.Code."""


class Methods(grpc.GenericRpcHandler):
    """Handlers of one service, by the method's full name."""

    def __init__(
        self,
        service: str,
        handlers: Mapping[str, Handler],
        refusable: Collection[str],
        refusal: Callable[[], ResolvedModel | None],
    ) -> None:
        """Calls of ``refusable`` methods are refused unread while ``refusal`` gives a reason."""
        self._handlers = {f"/{service}/{name}": handler for name, handler in handlers.items()}
        self._refusable = {f"/{service}/{name}" for name in refusable}
        self._refusal = refusal

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """Return the handler of a call; None: the call is for another service."""
        method = handler_call_details.method
        if method in self._refusable and (target := self._refusal()) is not None:
            return refusing(_refused(target))
        return self._handlers.get(method)


def _refused(target: ResolvedModel) -> BraidError:
    """Count a request that is refused unread; returns the refusal."""
    assert target.refusal is not None
    target.metrics.request_ended(status_code(target.refusal).name, 0.0)
    return target.refusal


@dataclass(slots=True)
class _Progress:
    """State of one request, recorded when the request ends."""

    resolved: ResolvedModel
    memory: Account
    time_remaining: float | None  # seconds from the beginning to the caller's deadline
    served: ModelReplica | None = None
    charge: Charge | None = None
    series: ReplicaMetrics | None = None
    result: InferenceResult | None = None


@dataclass(frozen=True, slots=True)
class TensorService:
    """Runs the inference requests of one protocol. Belongs to the event loop."""

    _models: ServingModels
    _memory: CallMemory
    _turns: Turns
    _protocol: TensorProtocol[Any]

    def methods(self, others: Mapping[str, Handler] | None = None) -> Methods:
        """Return the protocol's service: inference, and its ``others`` by the method's name."""
        protocol = self._protocol
        read = counted(protocol.read, protocol.request, protocol.tensor)
        unary: Handler = grpc.unary_unary_rpc_method_handler(self.infer, read)
        stream: Handler = grpc.stream_stream_rpc_method_handler(self.infer_stream, read)
        handlers = {**(others or {}), protocol.unary: unary, protocol.stream: stream}
        return Methods(protocol.service, handlers, [protocol.unary], self._models.refusal)

    def refuse_unread(self) -> None:
        """Raise what any request gets now, as ``Methods`` does for gRPC, before it is read."""
        if (target := self._models.refusal()) is not None:
            raise _refused(target)

    async def infer(self, message: Any, context: Context) -> bytes | LaterReply:
        async with answering(context):
            memory = self._memory.connection(context.peer())
            answer = await self._run(message, context, memory, in_stream=False)
            assert answer.charge is not None
            answer.charge.release_when_done(context)
            return answer.reply

    async def infer_stream(
        self, messages: AsyncIterator[Any], context: Context
    ) -> AsyncIterator[bytes | LaterReply]:
        """Answer many requests on one stream; errors are answers, too."""
        memory = self._memory.stream(context.peer(), getattr(context, "cancel", None))

        async def answer(message: Any) -> Answer:
            try:
                return await self._run(message, context, memory, in_stream=True)
            except Exception as error:
                return Answer(self._protocol.failure(message, *wire_error(error)))

        stream = answers(messages, answer, memory, in_order=self._protocol.in_order)
        async with answering(context), aclosing(stream) as replies:
            async for reply in replies:
                yield reply
                del reply  # it may be large, and the next one may take long

    async def _run(
        self, message: Any, context: Context, memory: Account, in_stream: bool
    ) -> Answer:
        """Run one request, and record how it ended. Raises BraidError: whatever ended it."""
        began = perf_counter()
        resolved = self._models.for_request(*self._protocol.model_of(message))
        progress, status = _Progress(resolved, memory, context.time_remaining()), "OK"
        try:
            return await self._answer(progress, message, context, in_stream)
        except asyncio.CancelledError:
            allowed_s = progress.time_remaining
            late = allowed_s is not None and perf_counter() - began >= allowed_s
            status = status_code(DeadlineExceeded("") if late else RequestCancelled("")).name
            raise
        except Exception as error:
            status = status_code(error).name
            raise
        finally:
            _record(progress, status, perf_counter() - began)

    async def _answer(
        self, progress: _Progress, message: Any, context: Context, in_stream: bool
    ) -> Answer:
        resolved, replicas = progress.resolved, progress.resolved.served
        if replicas is not None:
            progress.served = replicas.any
        elif resolved.coming is None:
            resolved.require()
        if (unpacking := self._protocol.unpacking(message)) is not None:
            message = await self._turns.finish(unpacking)
        given = self._protocol.given(message, context, in_stream)
        timeout_s = progress.time_remaining
        if given.timeout_s is not None:
            timeout_s = given.timeout_s if timeout_s is None else min(timeout_s, given.timeout_s)
        now = monotonic()
        deadline = None if timeout_s is None else now + timeout_s
        if replicas is None:
            replicas = await self._models.present(resolved, deadline)
        else:
            replicas.used_at = now
        while True:
            served = progress.served = replicas.any
            given = in_own_shapes(served, given)
            checked = check_request(served, given)
            if checked.shape_class.has_strings:
                checked = await self._turns.finish(with_strings(served, given, checked))
            if progress.charge is None:
                size_bytes = _size_bytes(served, given, checked)
                progress.charge = await progress.memory.take(size_bytes, deadline)
            if self._models.answers_with(replicas, served):
                break
            # Unloaded or replaced meanwhile: what answers now may have other bytes.
            resolved = self._models.for_request(served.name, str(served.version))
            replicas = await self._models.present(resolved, deadline)
        queued = replicas.choose(checked)
        served = progress.served = queued.replica
        progress.series = progress.resolved.metrics.on(served.device.name)
        submit = partial(queued.batcher.submit, served)
        try:
            result = await submit(checked, progress.series, deadline)
        except OtherExtents:  # than its import has seen
            checked = by_itself(served, given, checked)
            result = await submit(checked, progress.series, deadline)
        progress.result = result
        reply: bytes | LaterReply | None = result.reply
        if reply is None:
            reply = await self._turns.finish(_replying(given, served, result))
        progress.charge.answered(len(reply))
        return Answer(reply, progress.charge)


def _record(progress: _Progress, status: str, seconds: float) -> None:
    """Count a request that ended, release the charge of one that failed, and trace it."""
    if status != "OK" and progress.charge is not None:
        progress.charge.release()
    # Once the answer is on its way.
    asyncio.get_running_loop().call_soon(_count, progress, status, seconds)
    if (trace := tracing.current.get()) is not None:
        # Names of models that exist only: nothing else of a request leaves the server.
        served = progress.served
        name, number = (served.name, str(served.version)) if served else ("", "")
        trace.request_ended(name, number, status, seconds, progress.result)


def _count(progress: _Progress, status: str, seconds: float) -> None:
    result = progress.result
    if progress.series is not None and result is not None:
        progress.series.request_computed(
            result.queue_us / 1e6, result.compute_us / 1e6, result.prepare_us / 1e6
        )
    progress.resolved.metrics.request_ended(status, seconds)


def _replying(
    given: GivenRequest, served: ModelReplica, result: InferenceResult
) -> Work[bytes | LaterReply]:
    if given.reply_later is not None:
        return given.reply_later(served, result.outputs)
    assert given.reply is not None
    return given.reply(served, result.outputs)(result)


def _size_bytes(served: ModelReplica, given: GivenRequest, request: CheckedRequest) -> int | None:
    """Bytes of a request and its answer in this process's memory; None: not known."""
    answer_bytes = served.answer_bytes(request.shape_class, request.rows, request.outputs)
    if answer_bytes is None:
        return None
    size_bytes = answer_bytes + given.reply_bytes_a_row * request.rows
    for content in request.inputs.values():
        if isinstance(content, bytes | memoryview | Strings):
            size_bytes += len(content)
    return size_bytes
