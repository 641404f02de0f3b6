"""The synchronous client.

    with Client("127.0.0.1:8001") as braid:
        braid.register("net", "net.onnx", batch_sizes=[1, 4], wait=True)
        result = braid.infer("net", {"x": np.zeros((1, 3, 224, 224), np.float32)})

``braid_client.aio`` has the same surface for asyncio. What the two share is free of I/O: the
calls (``rpcs``), retries (``retries``), records (``records``), uploads (``upload``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import grpc

from braid_client import rpcs
from braid_client.errors import (
    STREAM_CUT,
    WATCH_CUT,
    BraidError,
    ClientClosed,
    JobFailed,
    Unavailable,
)
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
    Feed,
    ModelSource,
    OnUpload,
    Samples,
    open_model,
    sample_bytes,
    upload_parts,
)
from braid_client.wire import admin_pb2


class Client(Connection):
    """A connection to one Braid server. Safe to share between threads.

    Every call has a deadline: its own ``timeout_s``, else the one of ``timeouts``. Failures are
    raised as one of ``braid_client.errors``.

    Args:
        address: ``host:port`` of the server's gRPC port.
        timeouts: deadlines of calls that are given none.
        retry: how often and when inference and reads are tried again.
        token: bearer token, where the server asks for one.
        tls: for a connection with TLS.
        credentials: instead of ``tls``, whatever gRPC has; None for a plain-text connection.
        metadata: sent with every call.
    """

    _transport = grpc

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End all calls under way and close the connection. May be called twice."""
        self._closed = True
        self._channel.close()

    def infer(
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
        data = self._call(rpcs.INFER, write_request(request), timeout_s)
        return read_result(data, request)

    def infer_stream(
        self, requests: Iterable[InferRequest], *, timeout_s: float | None = None
    ) -> Iterator[StreamAnswer]:
        """Send many requests on one stream and yield the answers as they are ready.

        Answers carry the id of their request and may overtake each other. A request that fails
        is answered with an error, and the stream goes on. ``requests`` is read in another
        thread; what it raises, this iterator raises. Nothing is retried.
        """
        rpc = rpcs.INFER_STREAM
        feed = Feed(map(write_stream_request, requests))
        call = self._start(rpc, iter(feed), self._timeout_s(rpc, timeout_s))
        feed.feeds(call.cancel)
        try:
            for message in call:
                feed.unanswered -= 1
                yield read_answer(message)
        except grpc.RpcError as failure:
            if feed.failure is None:
                raise self._error(rpc, failure) from failure
        finally:
            call.cancel()
        if feed.failure is not None:
            raise feed.failure
        if feed.unanswered:
            raise Unavailable(STREAM_CUT)

    def register(
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
        header = register_header(
            *(name, batch_sizes, planner, input_shapes, precision, accepted_error, pad, no_pad),
            residency,
            lengths=lengths,
            batchable=batchable,
            pin=pin,
        )
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        job = accepted_job(self._upload(header, model, sample_bytes(samples), on_upload, timeout_s))
        if not wait:
            return job
        left = None if deadline is None else max(deadline - time.monotonic(), 1e-3)
        for state in self.watch_job(job.id, timeout_s=left):
            job = replace(state, already_registered=job.already_registered)
            if on_progress is not None:
                on_progress(job)
        if not job.serves:
            raise JobFailed(job)
        return job

    def watch_job(self, job_id: str, *, timeout_s: float | None = None) -> Iterator[Job]:
        """Yield the job's state now, then each change, until it has ended.

        Goes on through a restart of the server, which resumes its jobs.

        Raises:
            JobNotFound: no such job.
        """
        rpc = rpcs.WATCH_JOB
        attempts = self._attempts(rpc, timeout_s)
        request = admin_pb2.WatchJobRequest(job_id=job_id)
        while True:
            call = self._start(rpc, request, attempts.remaining_s())
            error: BraidError = Unavailable(WATCH_CUT)
            job: Job | None = None
            try:
                for message in call:
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
            time.sleep(delay)

    def cancel_job(self, job_id: str, *, timeout_s: float | None = None) -> Job:
        """End a job. A model that serves already keeps its present plan.

        Raises:
            JobNotFound: no such job.
            FailedPrecondition: the job has ended already.
        """
        request = admin_pb2.CancelJobRequest(job_id=job_id)
        return job_from_wire(self._call(rpcs.CANCEL_JOB, request, timeout_s))

    def jobs(
        self, model: str = "", *, limit: int = 100, timeout_s: float | None = None
    ) -> list[Job]:
        """List the jobs of one model, or of all, newest first."""
        request = admin_pb2.ListJobsRequest(model=model, limit=limit)
        answer = self._call(rpcs.LIST_JOBS, request, timeout_s)
        return [job_from_wire(job) for job in answer.jobs]

    def nodes(self, *, timeout_s: float | None = None) -> list[Node]:
        """List the servers that share the database, by id; on a machine of its own, the one."""
        request = admin_pb2.ListNodesRequest()
        answer = self._call(rpcs.LIST_NODES, request, timeout_s)
        return [node_from_wire(node) for node in answer.nodes]

    def models(self, *, timeout_s: float | None = None) -> list[Model]:
        """List all registered models."""
        answer = self._call(rpcs.LIST_MODELS, admin_pb2.ListModelsRequest(), timeout_s)
        return [model_from_wire(model) for model in answer.models]

    def model(
        self, name: str, *, version: str | int | None = None, timeout_s: float | None = None
    ) -> Model:
        """Describe a model: the version that answers, or the one named by number or label.

        Raises:
            ModelNotFound: no such model or version.
        """
        request = admin_pb2.GetModelRequest(model=name, version=version_text(version))
        return model_from_wire(self._call(rpcs.GET_MODEL, request, timeout_s))

    def delete(
        self, name: str, *, version: str | int | None = None, timeout_s: float | None = None
    ) -> None:
        """Remove a model, all versions unless one is named. Accepted requests are finished.

        Raises:
            ModelNotFound: no such model or version.
        """
        request = admin_pb2.DeleteModelRequest(model=name, version=version_text(version))
        self._call(rpcs.DELETE_MODEL, request, timeout_s)

    def serving(self, name: str, *, timeout_s: float | None = None) -> Serving:
        """Read how a model serves: versions, labels, batching.

        Raises:
            ModelNotFound: no such model.
        """
        request = admin_pb2.GetServingRequest(model=name)
        return serving_from_wire(self._call(rpcs.GET_SERVING, request, timeout_s))

    def set_serving(
        self, name: str, serving: Serving, *, timeout_s: float | None = None
    ) -> Serving:
        """Change how a model serves; return once the change is in force.

        To change one thing: ``set_serving(name, replace(client.serving(name), latest=1))``.

        Raises:
            ModelNotFound: no such model, or a version that is named does not exist.
            FailedPrecondition: a version that is named is not imported.
        """
        request = serving_to_wire(name, serving)
        return serving_from_wire(self._call(rpcs.SET_SERVING, request, timeout_s))

    def schedule(
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
        answer = self._call(rpcs.GET_SCHEDULE, request, timeout_s)
        return documents_from_wire(answer)

    def schedule_again(
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
        return job_from_wire(self._call(rpcs.SCHEDULE_AGAIN, request, timeout_s))

    def pin_plan(self, name: str, plan: str, *, timeout_s: float | None = None) -> None:
        """Let one plan serve wherever a schedule of a model has it, whatever requests show.

        Then bits repeat, and no other plan is tried. An empty ``plan`` lets requests decide again.

        Args:
            name: name of the model.
            plan: planner or runtime, as ``ScheduleSummary.contest`` names it.

        Raises:
            ModelNotFound: no such model.
            InvalidArgument: no schedule of it has such a plan.
        """
        self._call(rpcs.PIN_PLAN, admin_pb2.PinPlanRequest(model=name, plan=plan), timeout_s)

    def _upload(
        self,
        header: admin_pb2.RegisterModelHeader,
        model: ModelSource,
        samples: bytes,
        on_upload: OnUpload | None,
        timeout_s: float | None,
    ) -> admin_pb2.RegisterModelResponse:
        rpc = rpcs.REGISTER_MODEL
        if self._closed:
            raise ClientClosed
        timeout = self._timeout_s(rpc, timeout_s)
        with open_model(model) as (stream, size_bytes):
            feed = Feed(upload_parts(header, stream, size_bytes, on_upload, samples))
            upload = self._calls[rpc.path].future
            call = upload(iter(feed), timeout=timeout, metadata=self._metadata)
            feed.feeds(call.cancel)
            try:
                answer: admin_pb2.RegisterModelResponse = rpc.read(call.result())
            except (grpc.RpcError, grpc.FutureCancelledError) as failure:
                if feed.failure is not None:
                    raise feed.failure from None
                raise self._error(rpc, call) from failure
            finally:
                call.cancel()
        return answer

    def _call(self, rpc: Rpc, request: Any, timeout_s: float | None) -> Any:
        """Call until an answer comes or a failure that is not to be retried."""
        attempts = self._attempts(rpc, timeout_s)
        while True:
            try:
                return rpc.read(self._start(rpc, request, attempts.remaining_s()))
            except grpc.RpcError as failure:
                error = self._error(rpc, failure)
                delay = attempts.delay_after(error)
                if delay is None:
                    raise error from failure
            time.sleep(delay)
