"""``braid.v1.InferenceService``: tensors in, tensors out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc

from core.errors import InvalidRequest
from protos.braid.v1 import inference_pb2 as wire
from protos.braid.v1 import inference_pb2_grpc
from server.catalogue import Catalogue
from server.inference import Answer, infer
from server.requests import DEFAULT_PRIORITY, GivenRequest, GivenTensor
from server.servicers.streams import answers
from server.status import answering, wire_error

Context = grpc.aio.ServicerContext[Any, Any]


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """Runs models."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    async def Infer(self, request: wire.InferRequest, context: Context) -> wire.InferResponse:
        """One request, one answer."""
        async with answering(context):
            return await self._infer(request, context.time_remaining())

    async def InferStream(
        self, request_iterator: AsyncIterator[wire.InferRequest], context: Context
    ) -> AsyncIterator[wire.InferStreamResponse]:
        """Many requests on one stream; each is answered when it is ready."""

        async def answer(request: wire.InferRequest) -> wire.InferStreamResponse:
            try:
                response = await self._infer(request, context.time_remaining())
            except Exception as error:
                code, message = wire_error(error)
                return wire.InferStreamResponse(
                    request_id=request.request_id,
                    error=wire.InferError(code=code, message=message),
                )
            return wire.InferStreamResponse(request_id=request.request_id, response=response)

        stream = answers(request_iterator, answer, in_order=False)
        async with answering(context), aclosing(stream) as responses:
            async for response in responses:
                yield response

    async def _infer(
        self, request: wire.InferRequest, time_remaining: float | None
    ) -> wire.InferResponse:
        answer = await infer(
            self._catalogue,
            request.model,
            request.version,
            time_remaining,
            lambda _: given_request(request),
        )
        return _response(request, answer)


def given_request(request: wire.InferRequest) -> GivenRequest:
    """The request in the server's own terms."""
    if request.timeout_us < 0:
        raise InvalidRequest(f"timeout_us is {request.timeout_us}; give microseconds, or 0")
    return GivenRequest(
        request_id=request.request_id,
        inputs=[
            GivenTensor(tensor.name, tensor.dtype, tuple(tensor.shape), tensor.data)
            for tensor in request.inputs
        ],
        outputs=request.outputs,
        priority=request.priority or DEFAULT_PRIORITY,
        timeout_s=request.timeout_us / 1e6 if request.timeout_us else None,
    )


def _response(request: wire.InferRequest, answer: Answer) -> wire.InferResponse:
    outcome = answer.outcome
    return wire.InferResponse(
        model=request.model,
        version=str(answer.model.version),
        request_id=request.request_id,
        outputs=[
            wire.Tensor(name=name, dtype=tensor.dtype, shape=tensor.shape, data=bytes(tensor.data))
            for name, tensor in outcome.outputs.items()
        ],
        timing=wire.Timing(
            queue_us=outcome.queue_us,
            compute_us=outcome.compute_us,
            total_us=round(answer.seconds * 1e6),
        ),
        batch_size=outcome.batch_size,
        batch_rows=outcome.batch_rows,
        plan_id=outcome.plan_id,
    )
