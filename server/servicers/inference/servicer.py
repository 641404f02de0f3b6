"""``braid.v1.InferenceService``: tensors in, tensors out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from time import perf_counter_ns
from typing import Any

import grpc

from braid.core.errors import InvalidRequest
from braid.server.inference.call_memory import Account, CallMemory
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import DEFAULT_PRIORITY, GivenRequest
from braid.server.inference.slot_rows import Outcome
from braid.server.models.serving_models import ServingModels
from braid.server.rpc.status import answering, wire_error
from braid.server.servicers.inference.infer import Answer, infer
from braid.server.servicers.inference.protowire import Part
from braid.server.servicers.inference.streams import answers
from braid.server.servicers.inference.tensors import Received, write_response, write_stream_response
from braid_client.wire import inference_pb2 as wire

Context = grpc.aio.ServicerContext[Any, Any]

Write = Callable[[wire.InferRequest, int, Outcome, int], list[Part]]


class InferenceServicer:
    """Runs models. Messages come and go as ``tensors.py`` has them."""

    def __init__(self, models: ServingModels, memory: CallMemory) -> None:
        self._models = models
        self._memory = memory

    async def Infer(self, request: Received, context: Context) -> bytes:
        """One request, one answer."""
        async with answering(context):
            memory = self._memory.connection(context.peer())
            remaining = context.time_remaining()
            answer = await self._infer(request, remaining, write_response, memory)
            answer.release_when_done(context)
            return answer.reply

    async def InferStream(
        self, request_iterator: AsyncIterator[Received], context: Context
    ) -> AsyncIterator[bytes]:
        """Many requests on one stream; each is answered when it is ready."""
        memory = self._memory.stream(context.peer())

        async def answer(request: Received) -> Answer:
            return await self._answer_in_stream(request, context.time_remaining(), memory)

        stream = answers(request_iterator, answer, memory, in_order=False)
        async with answering(context), aclosing(stream) as responses:
            async for response in responses:
                yield response
                del response  # it may be large, and the next one may take long

    async def _answer_in_stream(
        self, request: Received, time_remaining: float | None, memory: Account
    ) -> Answer:
        """The answer to a request of a stream; errors are answers, too."""
        try:
            return await self._infer(request, time_remaining, write_stream_response, memory)
        except Exception as error:
            code, message = wire_error(error)
            failed = wire.InferStreamResponse(
                request_id=request.message.request_id,
                error=wire.InferError(code=code, message=message),
            )
            return Answer(failed.SerializeToString())

    async def _infer(
        self, request: Received, time_remaining: float | None, write: Write, memory: Account
    ) -> Answer:
        model, version = request.message.model, request.message.version
        read = partial(given_request, request, write, perf_counter_ns())
        return await infer(self._models, model, version, time_remaining, read, memory)


def given_request(
    request: Received, write: Write, began_ns: int, model: ModelReplica
) -> GivenRequest:
    """The request in the server's own terms, and how it is answered.

    Raises:
        InvalidRequest: its timeout is negative.
    """
    message = request.message
    if message.timeout_us < 0:
        raise InvalidRequest(f"timeout_us is {message.timeout_us}; give microseconds, or 0")

    def reply(outcome: Outcome) -> bytes:
        us = (perf_counter_ns() - began_ns) // 1000
        return b"".join(write(message, model.version, outcome, us))

    return GivenRequest(
        request_id=message.request_id,
        inputs=request.inputs,
        outputs=message.outputs,
        priority=message.priority or DEFAULT_PRIORITY,
        timeout_s=message.timeout_us / 1e6 if message.timeout_us else None,
        build_reply=reply,
    )
