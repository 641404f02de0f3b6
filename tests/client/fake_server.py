"""A Braid server with no device behind it: real gRPC, the real wire format, scripted failures.

    server.fails("Infer", UNAVAILABLE, times=2)     the next two calls fail, then all is well
    server.job_states = [...]                       what each watched job goes through
    server.calls                                    names of the calls received, in order

The model ``echo`` answers each input under its own name. Uploads are kept in ``uploads``.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NoReturn

import grpc

from braid.core.graph import Literal, Operator, OpGraph, graph_to_json
from braid.core.plan import Launch, StreamPlan
from braid.core.schedule import (
    Contender,
    Provenance,
    Schedule,
    ScheduleKey,
    Stage,
    schedule_to_json,
)
from braid.core.tensor import TensorType
from braid_client.wire import admin_pb2, admin_pb2_grpc, inference_pb2, inference_pb2_grpc

REQUEST_ID = "req-1"
State = admin_pb2.Job.State


@dataclass
class Failure:
    """What a call fails with."""

    code: grpc.StatusCode
    message: str = "as scripted"
    retry_after_ms: str | None = None


@dataclass
class Upload:
    """A received upload."""

    header: admin_pb2.RegisterModelHeader
    chunks: list[bytes] = field(default_factory=list)
    sha256: str = ""
    samples: bytes = b""

    @property
    def data(self) -> bytes:
        return b"".join(self.chunks)


def echo_model() -> admin_pb2.Model:
    """A batched model with one image input, scheduled at batch size 1."""
    shape = [admin_pb2.Extent(symbol="batch"), *(admin_pb2.Extent(fixed=n) for n in (3, 4, 4))]
    spec = admin_pb2.TensorSpec(name="x", dtype="FP32", shape=shape)
    summary = admin_pb2.ScheduleSummary(
        plan_id="plan-1",
        device="cpu",
        batch_size=1,
        planner="ios",
        stages=2,
        groups=3,
        measured_us=1000.0,
        sequential_us=1500.0,
        speedup=1.5,
        speedup_least=1.48,
        speedup_most=1.53,
        spread=0.02,
        sequential_spread=0.01,
        promoted=True,
        precision="fp16",
        max_rel_error=2e-3,
        side_by_side=admin_pb2.SideBySide(
            plan_id="side-by-side-2-1",
            count=2,
            planner="onnxruntime",
            latency_us=1200.0,
            gain=1.5,
            gain_least=1.4,
            gain_most=1.6,
        ),
    )
    return admin_pb2.Model(
        name="echo",
        version="1",
        state=admin_pb2.Model.SERVING,
        sha256="ab" * 32,
        size_bytes=2048,
        inputs=[spec],
        outputs=[spec],
        batched=True,
        schedules=[summary],
        created_unix=1.0,
    )


#   x ──> stem ──┬──> left
#                └──> right ──> right_pool        two stages: {stem}, {left | right, right_pool}
def _unit(name: str, kind: str, source: str, **attributes: Literal) -> Operator:
    return Operator(name, kind, (source,), (f"{name}_out",), attributes)


_GRAPH = OpGraph(
    name="echo",
    inputs={"x": TensorType("FP32", (1, 3, 4, 4))},
    outputs={"y": "left_out", "z": "right_pool_out"},
    constants={},
    operators=(
        _unit("stem", "aten.convolution", "x", epilogue=[["aten.relu"]]),
        _unit("left", "aten.convolution", "stem_out"),
        _unit("right", "aten.convolution", "stem_out"),
        _unit("right_pool", "aten.max_pool2d", "right_out"),
    ),
    specs={
        f"{name}_out": TensorType("FP32", (1, 3, 4, 4))
        for name in ("stem", "left", "right", "right_pool")
    },
)
_KEY = ScheduleKey("ab" * 32, "cpu", 1, planner="ios(r=3,s=8)")
_PLAN = StreamPlan((Launch(0, 0), Launch(1, 1), Launch(2, 0), Launch(3, 0)), 2, barriers=(1,))
_STAGES = (Stage(((0,),), latency_us=400.0), Stage(((1,), (2, 3)), latency_us=600.0))
_PROVENANCE = Provenance(
    predicted_us=1000.0,
    measured_us=1000.0,
    sequential_us=1500.0,
    spread=0.02,
    candidates=(
        Contender("sequential", 1500.0, 0.01, 99, 1.0, speedup_least=1.0, speedup_most=1.0),
        Contender("ios(r=3,s=8)", 1000.0, 0.02, 99, 1.5, speedup_least=1.48, speedup_most=1.53),
    ),
    stages_measured=7,
    stages_reused=2,
    search_seconds=0.01,
    max_abs_error=1e-6,
)


def schedule_document(**changes: Any) -> dict[str, Any]:
    """The schedule of the model ``echo``, with other fields where ``changes`` names them."""
    fields: dict[str, Any] = {"stages": _STAGES, "provenance": _PROVENANCE, **changes}
    names = tuple(op.name for op in _GRAPH.operators)
    return schedule_to_json(Schedule(_KEY, "ios", _PLAN, unit_names=names, **fields))


SCHEDULE = json.loads(json.dumps(schedule_document()))
GRAPH = json.loads(json.dumps(graph_to_json(_GRAPH)))


class FakeServer(admin_pb2_grpc.AdminServiceServicer, inference_pb2_grpc.InferenceServiceServicer):
    """See the head of the module."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.metadata: list[dict[str, Any]] = []
        self.uploads: list[Upload] = []
        self.models = {"echo": echo_model()}
        self.labels: dict[str, int] = {}
        self.jobs: dict[str, admin_pb2.Job] = {}
        self.nodes: list[admin_pb2.Node] = []
        self.job_states: list[admin_pb2.Job] = [
            admin_pb2.Job(state=State.IMPORTING, progress=0.1, eta_seconds=-1),
            admin_pb2.Job(state=State.PROFILING, progress=0.5, eta_seconds=2, done=3, total=6),
            admin_pb2.Job(state=State.READY, progress=1.0, eta_seconds=0),
        ]
        self.watch_cuts: list[int] = []  # how many states each of the next watches gives, at most
        self.watch_failure = grpc.StatusCode.UNAVAILABLE
        self.schedule = SCHEDULE
        self.asked_again: list[admin_pb2.ScheduleAgainRequest] = []
        self.known_job: admin_pb2.Job | None = None  # that every registration finds
        self.hold = threading.Event()  # set: held calls go on
        self.held = threading.Event()  # set by a call that waits for ``hold``
        self.hold_watch = False
        self.delay_s = 0.0  # before each answer
        self.truncate = False  # answer tensors that lack their last byte
        self._failures: dict[str, list[Failure]] = {}
        self._server = grpc.server(
            ThreadPoolExecutor(8),
            options=[("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)],
        )
        admin_pb2_grpc.add_AdminServiceServicer_to_server(self, self._server)
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.hold.set()
        self._server.stop(grace=None).wait(5)

    def fails(
        self,
        call: str,
        code: grpc.StatusCode,
        message: str = "as scripted",
        *,
        times: int = 1,
        retry_after_ms: str | None = None,
    ) -> None:
        """Let the next ``times`` calls of this name fail."""
        failure = Failure(code, message, retry_after_ms)
        self._failures.setdefault(call, []).extend([failure] * times)

    def RegisterModel(
        self, request_iterator: Iterator[admin_pb2.RegisterModelRequest], context: Any
    ) -> admin_pb2.RegisterModelResponse:
        self._enter("RegisterModel", context)
        upload = Upload(next(request_iterator).header)
        for part in request_iterator:
            if part.WhichOneof("part") == "chunk":
                upload.chunks.append(part.chunk)
            elif part.WhichOneof("part") == "samples":
                upload.samples += part.samples
            else:
                upload.sha256 = part.footer.sha256
        if upload.sha256 != hashlib.sha256(upload.data).hexdigest():
            _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "the checksum does not match")
        self.uploads.append(upload)
        if self.known_job is not None:
            job = self.known_job
            return admin_pb2.RegisterModelResponse(
                job_id=job.id,
                model=job.model,
                version=job.version,
                already_registered=job.state != admin_pb2.Job.QUEUED,
                state=job.state,
            )
        job_id = f"job-{len(self.uploads)}"
        self.jobs[job_id] = admin_pb2.Job(
            id=job_id, model=upload.header.name, version="1", state=State.QUEUED, eta_seconds=-1
        )
        return admin_pb2.RegisterModelResponse(job_id=job_id, model=upload.header.name, version="1")

    def WatchJob(self, request: admin_pb2.WatchJobRequest, context: Any) -> Iterator[admin_pb2.Job]:
        self._enter("WatchJob", context)
        job = self._job(request.job_id, context)
        limit = self.watch_cuts.pop(0) if self.watch_cuts else None
        for given, state in enumerate(self.job_states):
            if given == limit:
                _abort(context, self.watch_failure, "restarting")
            job.MergeFrom(state)
            yield job
            if self.hold_watch:
                self._wait()

    def CancelJob(self, request: admin_pb2.CancelJobRequest, context: Any) -> admin_pb2.Job:
        self._enter("CancelJob", context)
        job = self._job(request.job_id, context)
        job.state = State.CANCELLED
        return job

    def ListNodes(self, request: Any, context: Any) -> admin_pb2.ListNodesResponse:
        self._enter("ListNodes", context)
        return admin_pb2.ListNodesResponse(nodes=self.nodes)

    def ListJobs(self, request: Any, context: Any) -> admin_pb2.ListJobsResponse:
        self._enter("ListJobs", context)
        jobs = [job for job in self.jobs.values() if request.model in ("", job.model)]
        return admin_pb2.ListJobsResponse(jobs=jobs[: request.limit])

    def ListModels(self, request: Any, context: Any) -> admin_pb2.ListModelsResponse:
        self._enter("ListModels", context)
        return admin_pb2.ListModelsResponse(models=self.models.values())

    def GetServing(self, request: Any, context: Any) -> admin_pb2.ServingConfig:
        self._enter("GetServing", context)
        return admin_pb2.ServingConfig(model=request.model, labels=self.labels)

    def GetModel(self, request: admin_pb2.GetModelRequest, context: Any) -> admin_pb2.Model:
        self._enter("GetModel", context)
        return self._model(request.model, context)

    def DeleteModel(self, request: Any, context: Any) -> admin_pb2.DeleteModelResponse:
        self._enter("DeleteModel", context)
        self._model(request.model, context)
        del self.models[request.model]
        return admin_pb2.DeleteModelResponse()

    def GetSchedule(self, request: Any, context: Any) -> admin_pb2.GetScheduleResponse:
        self._enter("GetSchedule", context)
        self._model(request.model, context)
        if request.batch_size not in (0, 1):
            _abort(context, grpc.StatusCode.NOT_FOUND, "no schedule at this batch size")
        return admin_pb2.GetScheduleResponse(
            plan_id="plan-1", schedule_json=json.dumps(self.schedule), graph_json=json.dumps(GRAPH)
        )

    def ScheduleAgain(self, request: admin_pb2.ScheduleAgainRequest, context: Any) -> admin_pb2.Job:
        self._enter("ScheduleAgain", context)
        self._model(request.model, context)
        self.asked_again.append(request)
        job_id = f"again-{len(self.asked_again)}"
        self.jobs[job_id] = admin_pb2.Job(
            id=job_id, model=request.model, version="1", state=State.QUEUED, eta_seconds=-1
        )
        return self.jobs[job_id]

    def Infer(self, request: inference_pb2.InferRequest, context: Any) -> Any:
        self._enter("Infer", context)
        self._model(request.model, context)
        return self._echo(request)

    def InferStream(
        self, request_iterator: Iterator[inference_pb2.InferRequest], context: Any
    ) -> Iterator[inference_pb2.InferStreamResponse]:
        self._enter("InferStream", context)
        for request in request_iterator:
            answer = inference_pb2.InferStreamResponse(request_id=request.request_id)
            if request.model in self.models:
                answer.response.CopyFrom(self._echo(request))
            else:
                answer.error.code = grpc.StatusCode.NOT_FOUND.value[0]
                answer.error.message = f"no model named {request.model!r}"
            yield answer

    def _echo(self, request: inference_pb2.InferRequest) -> inference_pb2.InferResponse:
        wanted = set(request.outputs) or {tensor.name for tensor in request.inputs}
        if self.truncate:
            for tensor in request.inputs:
                tensor.data = tensor.data[:-1]
        return inference_pb2.InferResponse(
            model=request.model,
            version=request.version or "1",
            request_id=request.request_id,
            outputs=[tensor for tensor in request.inputs if tensor.name in wanted],
            timing=inference_pb2.Timing(queue_us=10, compute_us=20, total_us=30),
            batch_size=4,
            batch_rows=3,
            plan_id="plan-1",
        )

    def _enter(self, call: str, context: Any) -> None:
        self.calls.append(call)
        self.metadata.append(dict(context.invocation_metadata()))
        self.hold.wait(self.delay_s)
        if self._failures.get(call):
            failure = self._failures[call].pop(0)
            _abort(context, failure.code, failure.message, failure.retry_after_ms)

    def _model(self, name: str, context: Any) -> admin_pb2.Model:
        if name not in self.models:
            _abort(context, grpc.StatusCode.NOT_FOUND, f"no model named {name!r}")
        return self.models[name]

    def _job(self, job_id: str, context: Any) -> admin_pb2.Job:
        if job_id not in self.jobs:
            _abort(context, grpc.StatusCode.NOT_FOUND, f"no job {job_id!r}")
        return self.jobs[job_id]

    def _wait(self) -> None:
        self.held.set()
        self.hold.wait(120)


def _abort(
    context: Any, code: grpc.StatusCode, message: str, retry_after_ms: str | None = None
) -> NoReturn:
    trailing = [("braid-request-id", REQUEST_ID)]
    if retry_after_ms is not None:
        trailing.append(("braid-retry-after-ms", retry_after_ms))
    context.set_trailing_metadata(trailing)
    context.abort(code, message)
    raise AssertionError("abort raises")
