"""The asynchronous client: the surface of ``braid_client.Client``, for asyncio.

    async with AsyncClient("127.0.0.1:8001") as braid:
        job = await braid.register("net", "net.onnx", batch_sizes=[1, 4])
        async for state in braid.watch_job(job.id):
            print(state.detail)
        result = await braid.infer("net", {"x": np.zeros((1, 3, 224, 224), np.float32)})

Cancelling a task that waits for a call cancels the call on the server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import replace
from functools import partial
from typing import Any, Self

import grpc
import grpc.aio

from braid_client import errors, rpcs
from braid_client.aio_feed import Feed, as_async, in_threads
from braid_client.errors import WATCH_CUT, BraidError, JobFailed, Unavailable
from braid_client.messages import (
    read_answer,
    read_result,
    write_request,
    write_stream_request,
)
from braid_client.notebook import ScheduleDocuments
from braid_client.records import (
    InferRequest,
    InferResult,
    Job,
    JobState,
    Model,
    Node,
    PlannerOptions,
    Shapes,
    StreamAnswer,
    accepted_job,
    documents_from_wire,
    job_from_wire,
    model_from_wire,
    node_from_wire,
    register_header,
    version_text,
)
from braid_client.rpcs import Connection, Rpc
from braid_client.serving import Serving, serving_from_wire, serving_to_wire
from braid_client.tensors import Array
from braid_client.upload import (
    ModelSource,
    OnUpload,
    Samples,
    open_model,
    sample_bytes,
    upload_parts,
)
from braid_client.wire import admin_pb2


class AsyncClient(Connection):
    """A connection to one Braid server, for one event loop. Create it inside the loop.

    Arguments, deadlines and errors are those of ``braid_client.Client``.
    """

    _transport = grpc.aio

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all calls under way and close the connection. May be called twice."""
        self._closed = True
        await self._channel.close()

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Array] | Array,
        outputs: Sequence[str] | None = None,
        *,
        version: str | int | None = None,
        request_id: str | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> InferResult:
        """Run a model once; see ``Client.infer``."""
        request = InferRequest(model, inputs, outputs, version, request_id, priority)
        data = await self._call(rpcs.INFER, write_request(request), timeout_s)
        return read_result(data, request)

    async def infer_stream(
        self,
        requests: Iterable[InferRequest] | AsyncIterable[InferRequest],
        *,
        timeout_s: float | None = None,
    ) -> AsyncIterator[StreamAnswer]:
        """Send many requests on one stream and yield the answers; see ``Client.infer_stream``.

        ``requests`` is read in this event loop; give an async iterable if it has to wait.
        """
        rpc = rpcs.INFER_STREAM
        feed = Feed(as_async(requests), write_stream_request)
        call = self._start(rpc, feed, self._timeout_s(rpc, timeout_s))
        feed.feeds(call)
        try:
            async for message in call:
                feed.unanswered -= 1
                yield read_answer(message)
        except (grpc.RpcError, asyncio.CancelledError) as failure:
            raise await feed.reason(failure, partial(self._error, rpc)) from None
        finally:
            call.cancel()
        if feed.unanswered:
            raise Unavailable(errors.STREAM_CUT)

    async def register(
        self,
        name: str,
        model: ModelSource,
        *,
        batch_sizes: Sequence[int] = (),
        planner: PlannerOptions | str = "",
        input_shapes: Shapes | Sequence[Shapes] | None = None,
        precision: str = "",
        accepted_error: float | None = None,
        samples: Samples | None = None,
        pad: Mapping[str, str] | None = None,
        no_pad: bool = False,
        lengths: Sequence[int] | str = "",
        batchable: bool = False,
        residency: str | None = None,
        pin: str = "",
        wait: bool = False,
        on_progress: Callable[[Job], object] | None = None,
        on_upload: OnUpload | None = None,
        timeout_s: float | None = None,
    ) -> Job:
        """Upload an ONNX model, to be imported, scheduled and served; see ``Client.register``."""
        header = register_header(
            *(name, batch_sizes, planner, input_shapes, precision, accepted_error, pad, no_pad),
            residency,
            lengths=lengths,
            batchable=batchable,
            pin=pin,
        )
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        job = accepted_job(
            await self._upload(
                header, model, await asyncio.to_thread(sample_bytes, samples), on_upload, timeout_s
            )
        )
        if not wait:
            return job
        left = None if deadline is None else max(deadline - time.monotonic(), 1e-3)
        async for state in self.watch_job(job.id, timeout_s=left):
            job = replace(state, already_registered=job.already_registered)
            if on_progress is not None:
                on_progress(job)
        if not job.serves:
            raise JobFailed(job)
        return job

    async def watch_job(self, job_id: str, *, timeout_s: float | None = None) -> AsyncIterator[Job]:
        """Yield the job's state now, then each change, until it ends; see ``Client.watch_job``."""
        rpc = rpcs.WATCH_JOB
        attempts = self._attempts(rpc, timeout_s)
        request = admin_pb2.WatchJobRequest(job_id=job_id)
        while True:
            call = self._start(rpc, request, attempts.remaining_s())
            error: BraidError = Unavailable(WATCH_CUT)
            job: Job | None = None
            try:
                async for message in call:
                    attempts.succeeded()
                    job = job_from_wire(rpc.read(message))
                    yield job
                    if job.ended:
                        return
                if job is not None and job.state is JobState.UNKNOWN:
                    return  # a server that does not stop ends the watch with the job only
            except grpc.RpcError as failure:
                error = self._error(rpc, failure)
            finally:
                call.cancel()
            delay = attempts.delay_after(error)
            if delay is None:
                raise error
            await asyncio.sleep(delay)

    async def cancel_job(self, job_id: str, *, timeout_s: float | None = None) -> Job:
        """End a job; see ``Client.cancel_job``."""
        request = admin_pb2.CancelJobRequest(job_id=job_id)
        return job_from_wire(await self._call(rpcs.CANCEL_JOB, request, timeout_s))

    async def jobs(
        self, model: str = "", *, limit: int = 100, timeout_s: float | None = None
    ) -> list[Job]:
        """List the jobs of one model, or of all, newest first."""
        request = admin_pb2.ListJobsRequest(model=model, limit=limit)
        answer = await self._call(rpcs.LIST_JOBS, request, timeout_s)
        return [job_from_wire(job) for job in answer.jobs]

    async def nodes(self, *, timeout_s: float | None = None) -> list[Node]:
        """List the servers; see ``Client.nodes``."""
        request = admin_pb2.ListNodesRequest()
        answer = await self._call(rpcs.LIST_NODES, request, timeout_s)
        return [node_from_wire(node) for node in answer.nodes]

    async def models(self, *, timeout_s: float | None = None) -> list[Model]:
        """List all registered models."""
        answer = await self._call(rpcs.LIST_MODELS, admin_pb2.ListModelsRequest(), timeout_s)
        return [model_from_wire(model) for model in answer.models]

    async def model(
        self, name: str, *, version: str | int | None = None, timeout_s: float | None = None
    ) -> Model:
        """Describe a model: the version that answers, or the one named by number or label."""
        request = admin_pb2.GetModelRequest(model=name, version=version_text(version))
        return model_from_wire(await self._call(rpcs.GET_MODEL, request, timeout_s))

    async def delete(
        self, name: str, *, version: str | int | None = None, timeout_s: float | None = None
    ) -> None:
        """Remove a model, all versions unless one is named. Accepted requests are finished."""
        request = admin_pb2.DeleteModelRequest(model=name, version=version_text(version))
        await self._call(rpcs.DELETE_MODEL, request, timeout_s)

    async def serving(self, name: str, *, timeout_s: float | None = None) -> Serving:
        """Read how a model serves: versions, labels, batching; see ``Client.serving``."""
        request = admin_pb2.GetServingRequest(model=name)
        return serving_from_wire(await self._call(rpcs.GET_SERVING, request, timeout_s))

    async def set_serving(
        self, name: str, serving: Serving, *, timeout_s: float | None = None
    ) -> Serving:
        """Change how a model serves; see ``Client.set_serving``."""
        request = serving_to_wire(name, serving)
        return serving_from_wire(await self._call(rpcs.SET_SERVING, request, timeout_s))

    async def schedule(
        self,
        name: str,
        batch: int = 1,
        device: str = "",
        *,
        version: str | int | None = None,
        shapes: str = "",
        timeout_s: float | None = None,
    ) -> ScheduleDocuments:
        """Read a schedule and its operator graph as JSON; see ``Client.schedule``."""
        request = admin_pb2.GetScheduleRequest(
            model=name,
            version=version_text(version),
            device=device,
            batch_size=batch,
            shapes=shapes,
        )
        answer = await self._call(rpcs.GET_SCHEDULE, request, timeout_s)
        return documents_from_wire(answer)

    async def schedule_again(
        self,
        name: str,
        *,
        batch: int | None = None,
        device: str = "",
        version: str | int | None = None,
        timeout_s: float | None = None,
    ) -> Job:
        """Have schedules measured and made again; see ``Client.schedule_again``."""
        request = admin_pb2.ScheduleAgainRequest(
            model=name, version=version_text(version), device=device, batch_size=batch or 0
        )
        return job_from_wire(await self._call(rpcs.SCHEDULE_AGAIN, request, timeout_s))

    async def pin_plan(self, name: str, plan: str, *, timeout_s: float | None = None) -> None:
        """Let one plan serve whatever requests show; see ``Client.pin_plan``."""
        request = admin_pb2.PinPlanRequest(model=name, plan=plan)
        await self._call(rpcs.PIN_PLAN, request, timeout_s)

    async def _upload(
        self,
        header: admin_pb2.RegisterModelHeader,
        model: ModelSource,
        samples: bytes,
        on_upload: OnUpload | None,
        timeout_s: float | None,
    ) -> admin_pb2.RegisterModelResponse:
        rpc = rpcs.REGISTER_MODEL
        with open_model(model) as (stream, size_bytes):
            feed = Feed(
                in_threads(upload_parts(header, stream, size_bytes, on_upload, samples)),
                lambda part: part,
            )
            call = self._start(rpc, feed, self._timeout_s(rpc, timeout_s))
            feed.feeds(call)
            try:
                answer: admin_pb2.RegisterModelResponse = rpc.read(await call)
            except (grpc.RpcError, asyncio.CancelledError) as failure:
                raise await feed.reason(failure, partial(self._error, rpc)) from None
            finally:
                call.cancel()
        return answer

    async def _call(self, rpc: Rpc, request: Any, timeout_s: float | None) -> Any:
        """Call until an answer comes or a failure that is not to be retried."""
        attempts = self._attempts(rpc, timeout_s)
        while True:
            try:
                return rpc.read(await self._start(rpc, request, attempts.remaining_s()))
            except grpc.RpcError as failure:
                error = self._error(rpc, failure)
                delay = attempts.delay_after(error)
                if delay is None:
                    raise error from failure
            await asyncio.sleep(delay)
