"""Client of the Braid inference server: numpy in, numpy out, sync and async.

    Client, AsyncClient     the same methods: aio.py has them, client.py runs them by blocking
    records                 Job, Model, InferResult, ...: frozen dataclasses
    errors                  one tree, BraidError at its root
    security, serving       tokens and TLS; versions, labels, batching
    messages, tensors       requests and results, numpy <-> wire, BF16 included
    notebook                records as HTML
    wire_fields             tensors in and out of serialised messages
    rpcs, streams           calls, their deadlines and retries, their requests
    retries, upload         rules of retries, parts of an upload
    wire                    generated code

Needs grpcio, protobuf and numpy, nothing of the server.
"""

from braid_client.aio import AsyncClient
from braid_client.client import Client
from braid_client.errors import (
    AlreadyExists,
    BraidError,
    Cancelled,
    ClientClosed,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    JobFailed,
    JobNotFound,
    ModelNotFound,
    NotFound,
    PermissionDenied,
    QueueFull,
    ResourceExhausted,
    ScheduleNotFound,
    ServerError,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from braid_client.notebook import ScheduleDocuments
from braid_client.records import (
    Allowance,
    InferRequest,
    InferResult,
    Job,
    JobState,
    Lengths,
    Model,
    ModelState,
    Node,
    PaddedAxis,
    PlanCandidate,
    PlanContest,
    PlannerOptions,
    ScheduleSummary,
    SideBySide,
    StreamAnswer,
    TensorSpec,
    Timing,
)
from braid_client.retries import RetryPolicy
from braid_client.rpcs import Timeouts
from braid_client.security import Tls
from braid_client.serving import Serving
from braid_client.tensors import BFloat16Bits
from braid_client.version import __version__

__all__ = [
    "Allowance",
    "AlreadyExists",
    "AsyncClient",
    "BFloat16Bits",
    "BraidError",
    "Cancelled",
    "Client",
    "ClientClosed",
    "DeadlineExceeded",
    "FailedPrecondition",
    "InferRequest",
    "InferResult",
    "InvalidArgument",
    "Job",
    "JobFailed",
    "JobNotFound",
    "JobState",
    "Lengths",
    "Model",
    "ModelNotFound",
    "ModelState",
    "Node",
    "NotFound",
    "PaddedAxis",
    "PermissionDenied",
    "PlanCandidate",
    "PlanContest",
    "PlannerOptions",
    "QueueFull",
    "ResourceExhausted",
    "RetryPolicy",
    "ScheduleDocuments",
    "ScheduleNotFound",
    "ScheduleSummary",
    "ServerError",
    "Serving",
    "SideBySide",
    "StreamAnswer",
    "TensorSpec",
    "Timeouts",
    "Timing",
    "Tls",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "__version__",
]
