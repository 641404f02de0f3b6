"""``braid.v1.InferenceService``: tensors in, tensors out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import monotonic, perf_counter
from typing import Any

import grpc

from core.errors import DeadlineExceeded, RequestCancelled
from protos.braid.v1 import inference_pb2 as wire
from protos.braid.v1 import inference_pb2_grpc
from server.catalogue import Catalogue
from server.requests import check_request
from server.rows import Outcome
from server.status import answering, status_code, wire_error

Context = grpc.aio.ServicerContext[Any, Any]

MAX_STREAM_IN_FLIGHT = 64
"""Requests of one stream that are worked on at once; more wait in the stream's flow control."""


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
        async with answering(context):
            answers: asyncio.Queue[wire.InferStreamResponse | None] = asyncio.Queue()
            reader = asyncio.create_task(self._read_stream(request_iterator, context, answers))
            try:
                while (answer := await answers.get()) is not None:
                    yield answer
                await reader
            finally:
                reader.cancel()

    async def _read_stream(
        self,
        requests: AsyncIterator[wire.InferRequest],
        context: Context,
        answers: asyncio.Queue[wire.InferStreamResponse | None],
    ) -> None:
        """Start each request as it comes; end the stream's answers after the last one."""
        places = asyncio.Semaphore(MAX_STREAM_IN_FLIGHT)

        async def answer(request: wire.InferRequest) -> None:
            try:
                response = await self._infer(request, context.time_remaining())
                ended = wire.InferStreamResponse(request_id=request.request_id, response=response)
            except Exception as error:
                code, message = wire_error(error)
                ended = wire.InferStreamResponse(
                    request_id=request.request_id,
                    error=wire.InferError(code=code, message=message),
                )
            finally:
                places.release()
            answers.put_nowait(ended)

        try:
            async with asyncio.TaskGroup() as running:
                async for request in requests:
                    await places.acquire()
                    running.create_task(answer(request))
        finally:
            answers.put_nowait(None)

    async def _infer(
        self, request: wire.InferRequest, time_remaining: float | None
    ) -> wire.InferResponse:
        began = perf_counter()
        outcome_name = "OK"
        found = self._catalogue.for_request(request.model, request.version)
        try:
            served = found.require()
            checked = check_request(served, request)
            deadline = None if time_remaining is None else monotonic() + time_remaining
            outcome = await self._catalogue.batcher(served).submit(
                served, checked, found.metrics, deadline
            )
            found.metrics.request_computed(outcome.queue_us / 1e6, outcome.compute_us / 1e6)
            return _response(request, str(served.version), outcome, perf_counter() - began)
        except asyncio.CancelledError:
            late = time_remaining is not None and perf_counter() - began >= time_remaining
            gone = DeadlineExceeded("") if late else RequestCancelled("")
            outcome_name = status_code(gone).name
            raise
        except Exception as error:
            outcome_name = status_code(error).name
            raise
        finally:
            found.metrics.request_ended(outcome_name, perf_counter() - began)


def _response(
    request: wire.InferRequest, version: str, outcome: Outcome, seconds: float
) -> wire.InferResponse:
    return wire.InferResponse(
        model=request.model,
        version=version,
        request_id=request.request_id,
        outputs=[
            wire.Tensor(name=name, dtype=tensor.dtype, shape=tensor.shape, data=tensor.data)
            for name, tensor in outcome.outputs.items()
        ],
        timing=wire.Timing(
            queue_us=outcome.queue_us,
            compute_us=outcome.compute_us,
            total_us=round(seconds * 1e6),
        ),
        batch_size=outcome.batch_size,
        batch_rows=outcome.batch_rows,
        plan_id=outcome.plan_id,
    )
