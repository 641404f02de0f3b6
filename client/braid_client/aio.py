"""The asynchronous client: the surface of ``braid_client.Client``, for asyncio.

    async with AsyncClient("127.0.0.1:8001") as braid:
        job = await braid.register("net", "net.onnx", batch_sizes=[1, 4])
        async for state in braid.watch_job(job.id):
            print(state.detail)
        result = await braid.infer("net", {"x": np.zeros((1, 3, 224, 224), np.float32)})

Cancelling a task that waits for a call cancels the call on the server.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final, Self

import grpc
import grpc.aio

from braid_client import rpcs
from braid_client.errors import STREAM_CUT, WATCH_CUT, BraidError, JobFailed, Unavailable
from braid_client.messages import read_answer, read_result, write_request, write_stream_request
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
    node_from_wire,
    record_of,
    shapes_to_wire,
    version_text,
)
from braid_client.rpcs import Connection
from braid_client.serving import Serving, serving_from_wire, serving_to_wire
from braid_client.streams import Feed, as_async, at_once, pulled
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

OVERWRITTEN: Final = "Internal error from Core"
"""Details of the status that grpc.aio makes up."""

PATIENCE_S: Final = 1.0
"""Seconds that the server's status may take to arrive after a request could not be sent."""


class AsyncClient(Connection):
    """A connection to one Braid server, for one event loop. Create it inside the loop.

    Arguments, deadlines and errors are those of ``braid_client.Client``.
    """

    _transport = grpc.aio
    _sleep = staticmethod(asyncio.sleep)

    @staticmethod
    async def _in_thread(function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.to_thread(function, *args)

    @staticmethod
    async def _answer(call: Any) -> Any:
        return await call

    @staticmethod
    async def _answers(call: Any) -> AsyncGenerator[Any, None]:
        """Yield the answers to a call; raise the status that the server sent.

        If the server ends the call while a request is being sent, grpc.aio may overwrite its status
        by an INTERNAL of its own (grpc issue 36066).
        """
        status = asyncio.get_running_loop().create_future()
        call.add_done_callback(partial(_note_status, status))
        try:
            async for answer in call:
                yield answer
        except grpc.RpcError as failure:
            if failure.details() == OVERWRITTEN:
                with suppress(TimeoutError):
                    failure = await asyncio.wait_for(status, PATIENCE_S)
            if failure.code() is not grpc.StatusCode.OK:  # while requests were still being sent
                raise failure from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all calls under way and close the connection. May be called twice."""
        self._closed = True
        await self._channel.close()

    # The methods below run on a Client, too: of ``self`` they use what Connection has, no more.

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
        """Run a model once.

        Args:
            model: name of a registered model.
            inputs: every input of the model by name, or the array of its only input; along the
                batch axis any number of rows.
            outputs: names of the outputs wanted; None means all.
            version: a number or a label; None means what the server answers with by default.
            request_id: returned unchanged.
            priority: 1 (goes first) to 10; 0 means the default.
            timeout_s: bounds the call, with all its retries.

        Raises:
            InvalidArgument: an input is missing, unknown, or of the wrong dtype or shape.
            ModelNotFound: no such model or version.
            QueueFull: the server is too busy, and still was after the retries.
            Unavailable: the server is not reachable or the model is not loaded yet.
            DeadlineExceeded: no answer in time.
        """
        request = InferRequest(model, inputs, outputs, version, request_id, priority)
        data = await self._call(rpcs.INFER, write_request(request), timeout_s)
        return read_result(data, request)

    async def infer_stream(
        self,
        requests: Iterable[InferRequest] | AsyncIterable[InferRequest],
        *,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[StreamAnswer, None]:
        """Send many requests on one stream and yield the answers as they are ready.

        Answers carry the id of their request and may overtake each other. A request that fails
        is answered with an error, and the stream goes on. ``requests`` is read in this event loop;
        give an async iterable if it has to wait. What it raises, this iterator raises. Nothing is
        retried.
        """
        rpc = rpcs.INFER_STREAM
        feed = Feed(write_stream_request(each) async for each in as_async(requests))
        stream = self._stream(rpc, feed, self._timeout_s(rpc, timeout_s))
        async with aclosing(stream) as answers:
            async for answer in answers:
                feed.unanswered -= 1
                yield read_answer(answer)
        if feed.unanswered:
            raise Unavailable(STREAM_CUT)

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
        """Upload an ONNX model, to be imported, scheduled and served. Never retried.

        Args:
            name: letters, digits, '.', '_', '-'; a name in use gets a new version.
            model: path of the file, or its bytes. A file is streamed, never held in memory.
            batch_sizes: to schedule, each by itself; none: 1, and larger ones that pay.
            planner: options, or just the planner's name.
            input_shapes: whole shapes, batch as 1, of inputs with other open extents; several such
                mappings for several shapes, each of which is scheduled.
            precision: "fp32" (if empty), "tf32", "fp16", "bf16", or "int8", which needs samples, as
                far as the server's devices can; "auto": the fastest of those within
                ``accepted_error``. Inputs and outputs keep the model's types.
            accepted_error: outputs may be this far from FP32's, relative to the largest element of
                each; None: as far as is usual for the precision. What errs more does not serve.
            samples: inputs that errors are measured on, and that ranges of integers are taken from:
                arrays by name, the first dimension counting samples, or an .npz file of them;
                None: errors are of seeded inputs. An import tries them where the model takes
                nothing that it can make up.
            pad: axes along which requests are padded, by name: "zeros" or "repeat" (of the last
                position). The job fails if trials of the import disagree.
            no_pad: requests are never padded, also where an earlier version showed that as exact.
            lengths: of the one axis along which requests are padded, to schedule beside the input
                shapes; "none", or empty: no others.
            batchable: rows of requests may share batches though the import did not show that they
                do not influence each other. A wrong statement lets callers change others' answers.
            residency: "pinned", "resident" or "on-demand", for all versions of the name; None: as
                it was. ``set_serving`` changes it, and what goes with it.
            pin: plan that serves wherever a schedule has it, for all versions of the name; empty:
                as it was. ``pin_plan`` changes it.
            wait: return only when the job has ended; ``timeout_s`` then bounds that too.
            on_progress: called with each state of the job, if ``wait``.
            on_upload: called, in another thread, with the bytes sent and the bytes in all.

        Raises:
            OSError: the file cannot be read.
            InvalidArgument: a bad name, a file that is no model, ...
            JobFailed: ``wait``, and the job ended otherwise than READY or UNSCHEDULED.
        """
        options = PlannerOptions(planner) if isinstance(planner, str) else planner
        several = [input_shapes] if isinstance(input_shapes, Mapping) else list(input_shapes or ())
        first, *others = [shapes_to_wire(shapes) for shapes in several] or [{}]
        header = admin_pb2.RegisterModelHeader(
            name=name,
            format=admin_pb2.RegisterModelHeader.FORMAT_ONNX,
            batch_sizes=batch_sizes,
            planner=admin_pb2.PlannerOptions(**asdict(options)),
            input_shapes=first,
            more_input_shapes=[admin_pb2.InputShapes(shapes=shapes) for shapes in others],
            precision=precision,
            accepted_error=accepted_error or 0.0,
            pad=pad or {},
            no_pad=no_pad,
            lengths=lengths if isinstance(lengths, str) else ",".join(map(str, lengths)),
            residency=None if residency is None else admin_pb2.Residency(kind=residency),
            batchable=batchable,
            pin=pin,
        )
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        sample_file = await self._in_thread(sample_bytes, samples)
        rpc = rpcs.REGISTER_MODEL
        with open_model(model) as (chunks, size_bytes):
            parts = upload_parts(header, chunks, size_bytes, on_upload, sample_file)
            feed = Feed(pulled(parts, self._in_thread))
            upload = self._stream(rpc, feed, self._timeout_s(rpc, timeout_s))
            answers = [answer async for answer in upload]
        job = accepted_job(answers[0] if answers else rpc.read(None))
        if not wait:
            return job
        left = None if deadline is None else max(deadline - time.monotonic(), 1e-3)
        async for state in AsyncClient.watch_job(self, job.id, timeout_s=left):
            job = replace(state, already_registered=job.already_registered)
            if on_progress is not None:
                on_progress(job)
        if not job.serves:
            raise JobFailed(job)
        return job

    async def watch_job(
        self, job_id: str, *, timeout_s: float | None = None
    ) -> AsyncGenerator[Job, None]:
        """Yield the job's state now, then each change, until it has ended.

        Goes on through a restart of the server, which resumes its jobs.

        Raises:
            JobNotFound: no such job.
        """
        rpc = rpcs.WATCH_JOB
        attempts = self._attempts(rpc, timeout_s)
        request = admin_pb2.WatchJobRequest(job_id=job_id)
        while True:
            error: BraidError = Unavailable(WATCH_CUT)
            job: Job | None = None
            watch = self._stream(rpc, request, attempts.remaining_s())
            try:
                async with aclosing(watch) as states:
                    async for state in states:
                        attempts.succeeded()
                        job = job_from_wire(state)
                        yield job
                        if job.ended:
                            return
                if job is not None and job.state is JobState.UNKNOWN:
                    return  # a server that does not stop ends the watch with the job only
            except BraidError as failure:
                error = failure
            delay = attempts.delay_after(error)
            if delay is None:
                raise error
            await self._sleep(delay)

    async def cancel_job(self, job_id: str, *, timeout_s: float | None = None) -> Job:
        """End a job. A model that serves already keeps its present plan.

        Raises:
            JobNotFound: no such job.
            FailedPrecondition: the job has ended already.
        """
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
        """List the servers that share the database, by id; on a machine of its own, the one."""
        request = admin_pb2.ListNodesRequest()
        answer = await self._call(rpcs.LIST_NODES, request, timeout_s)
        return [node_from_wire(node) for node in answer.nodes]

    async def models(self, *, timeout_s: float | None = None) -> list[Model]:
        """List all registered models."""
        answer = await self._call(rpcs.LIST_MODELS, admin_pb2.ListModelsRequest(), timeout_s)
        return [record_of(model, Model) for model in answer.models]

    async def model(
        self, name: str, *, version: str | int | None = None, timeout_s: float | None = None
    ) -> Model:
        """Describe a model: the version that answers, or the one named by number or label.

        Raises:
            ModelNotFound: no such model or version.
        """
        request = admin_pb2.GetModelRequest(model=name, version=version_text(version))
        return record_of(await self._call(rpcs.GET_MODEL, request, timeout_s), Model)

    async def delete(
        self, name: str, *, version: str | int | None = None, timeout_s: float | None = None
    ) -> None:
        """Remove a model, all versions unless one is named. Accepted requests are finished.

        Raises:
            ModelNotFound: no such model or version.
        """
        request = admin_pb2.DeleteModelRequest(model=name, version=version_text(version))
        await self._call(rpcs.DELETE_MODEL, request, timeout_s)

    async def serving(self, name: str, *, timeout_s: float | None = None) -> Serving:
        """Read how a model serves: versions, labels, batching.

        Raises:
            ModelNotFound: no such model.
        """
        request = admin_pb2.GetServingRequest(model=name)
        return serving_from_wire(await self._call(rpcs.GET_SERVING, request, timeout_s))

    async def set_serving(
        self, name: str, serving: Serving, *, timeout_s: float | None = None
    ) -> Serving:
        """Change how a model serves; return once the change is in force.

        To change one thing: ``set_serving(name, replace(client.serving(name), latest=1))``.

        Raises:
            ModelNotFound: no such model, or a version that is named does not exist.
            FailedPrecondition: a version that is named is not imported.
        """
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
        """Read a schedule of a model and the operator graph whose units it names, as JSON.

        Args:
            name: name of the model.
            batch: one of the batch sizes it was registered with.
            device: e.g. ``cpu``; empty means the first device.
            version: a number or a label; None means the one that answers.
            shapes: as a ``ScheduleSummary`` has them; empty means the main ones.

        Raises:
            ScheduleNotFound: no such model, or no schedule (yet) for this device, batch and shapes.
        """
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
        """Have schedules measured and made again; they serve until the new ones are verified.

        That is of use where the machine, or what else runs on it, is not as it was.

        Args:
            name: name of the model.
            batch: batch size; None means all that it was registered with.
            device: e.g. ``cpu``; empty means all.
            version: a number or a label; None means the one that answers.

        Returns:
            the job, to be watched with ``watch_job``; one of the version that is under way already.

        Raises:
            ModelNotFound: no such model or version.
            InvalidArgument: no such device, or not a batch size that it was registered with.
            FailedPrecondition: the version does not serve.
        """
        request = admin_pb2.ScheduleAgainRequest(
            model=name, version=version_text(version), device=device, batch_size=batch or 0
        )
        return job_from_wire(await self._call(rpcs.SCHEDULE_AGAIN, request, timeout_s))

    async def pin_plan(self, name: str, plan: str, *, timeout_s: float | None = None) -> None:
        """Let one plan serve wherever a schedule of a model has it, whatever requests show.

        Then bits repeat, and no other plan is tried. An empty ``plan`` lets requests decide again.

        Args:
            name: name of the model.
            plan: planner or runtime, as ``ScheduleSummary.contest`` names it.

        Raises:
            ModelNotFound: no such model.
            InvalidArgument: no schedule of it has such a plan.
        """
        await self._call(rpcs.PIN_PLAN, admin_pb2.PinPlanRequest(model=name, plan=plan), timeout_s)


def _note_status(status: asyncio.Future[grpc.RpcError], call: Any) -> None:
    """Keep the status that grpc.aio sets if the server sent it."""
    details = at_once(call.details())
    if details != OVERWRITTEN and not status.done():
        code, trailing = at_once(call.code()), at_once(call.trailing_metadata())
        status.set_result(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details))
