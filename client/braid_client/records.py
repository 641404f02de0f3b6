"""Frozen dataclasses that the client sends and receives, and how registrations and models are read.

register ──> Job        infer ──> InferResult        infer_stream ──> StreamAnswer
models ──> Model ──┬── TensorSpec (inputs, outputs)
                   └── ScheduleSummary (one a device and batch size) ── SideBySide (or none)
"""

import json
from collections.abc import Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, TypeVar

from google.protobuf.message import Message

from braid_client import notebook
from braid_client.errors import UNREADABLE, BraidError, ServerError
from braid_client.tensors import Array
from braid_client.wire import admin_pb2

R = TypeVar("R")

Shapes = Mapping[str, Sequence[int]]
"""Whole shapes by input, the batch as 1."""


class JobState(StrEnum):
    """State of a registration."""

    UNKNOWN = "UNKNOWN"  # a state that this version of the client does not know
    QUEUED = "QUEUED"  # stored; will run, even across a crash of the server
    IMPORTING = "IMPORTING"  # the file is being read, in a process of its own
    PROFILING = "PROFILING"  # stages are being measured; the model serves already
    SCHEDULING = "SCHEDULING"  # the planner is searching
    VERIFYING = "VERIFYING"  # the plan is compared with the sequential one
    READY = "READY"  # ended: all batch sizes are scheduled
    UNSCHEDULED = "UNSCHEDULED"  # ended: the model serves; ``message``: why not (all) as scheduled
    FAILED = "FAILED"  # ended: ``message`` says why
    CANCELLED = "CANCELLED"  # ended by a caller


SERVING = frozenset({JobState.READY, JobState.UNSCHEDULED})
ENDED = SERVING | {JobState.FAILED, JobState.CANCELLED}


class ModelState(StrEnum):
    """State of a model version: whether it answers."""

    UNKNOWN = "UNKNOWN"  # a state that this version of the client does not know
    LOADING = "LOADING"  # being imported
    SERVING = "SERVING"
    FAILED = "FAILED"  # does not serve; ``message`` says why
    DRAINING = "DRAINING"  # being deleted
    UNLOADED = "UNLOADED"  # served, was told not to, stays registered


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """Planner of a model and its limits; the server chooses what is left at its default."""

    name: str = ""  # "ios" or "sequential"
    max_group_ops: int = 0  # operators per group (the paper's r)
    max_groups: int = 0  # groups per stage (the paper's s)


@dataclass(frozen=True, slots=True)
class Job:
    """State of a registration at one moment."""

    id: str
    model: str
    version: str
    state: JobState
    progress: float = 0.0  # 0 to 1 over the whole job
    detail: str = ""  # what is being done now
    eta_s: float | None = None  # seconds until the end; None while unknown
    done: int = 0  # of the present phase, e.g. stages measured
    total: int = 0
    message: str = ""  # why it failed or is not scheduled, or a remark on a job that is ready
    created_unix: float = 0.0
    updated_unix: float = 0.0
    already_registered: bool = False  # only ``register`` says so: it found this job, made none

    @property
    def ended(self) -> bool:
        """True if the state will not change any more."""
        return self.state in ENDED

    @property
    def serves(self) -> bool:
        """True if it has ended and the model serves: READY, or UNSCHEDULED."""
        return self.state in SERVING

    def _repr_html_(self) -> str:
        return notebook.job_html(self)


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a server may use of its machine, by affinity and control groups."""

    cpus: float = 0.0  # cores, or the quota of CPU time if that is less
    cores: int = 0  # that it may run on
    memory_bytes: int = 0  # of the machine, or of the smallest control group around the server
    memory_budget_bytes: int = 0  # that the server divides among its processes
    periods: int = 0  # of the quota, in which it had work
    throttled_periods: int = 0  # of these: in which it was stopped, as the quota was used up
    throttled_seconds: float = 0.0  # that it was stopped, over all cores


@dataclass(frozen=True, slots=True)
class Node:
    """A server among those that share one database, and what it works on."""

    id: str
    address: str  # HOST:PORT of gRPC, as others reach it
    device_keys: tuple[str, ...] = ()
    version: str = ""  # of Braid
    started_unix: float = 0.0
    beat_age_s: float = 0.0  # since it last told the database that it lives
    alive: bool = True  # False: another server takes over what it worked on
    job_ids: tuple[str, ...] = ()
    answers: bool = False  # it answered the call
    allowance: Allowance | None = None  # of the one that answered


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, dtype and shape of a model's input or output; a symbol is free per request."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Batches that run at once under load, each on its part of a device's threads."""

    plan_id: str  # as results of what ran so name it
    count: int
    planner: str  # what runs each: "sequential", "onnxruntime" or "openvino"
    latency_us: float  # of each, while all of them run
    gain: float  # runs a second over those on all threads, median of turns
    gain_least: float  # interval of ``gain`` (90 %)
    gain_most: float


@dataclass(frozen=True, slots=True)
class PlanCandidate:
    """A plan that requests may choose, beside the one that serves."""

    name: str  # planner, or runtime
    pairs: int  # of blocks of consecutive batches, one of it and one of what serves
    ratio: float | None  # of its latency to that of what serves; None: not known
    low: float | None  # interval of the ratio
    high: float | None
    share: float  # of all requests
    runs: int  # batches
    latency_us: float  # of its newest runs, else as last measured
    plan_id: str  # as answers name it


@dataclass(frozen=True, slots=True)
class PlanContest:
    """Which of a few plans is the fastest in service; ``str`` says it in one line."""

    candidates: tuple[PlanCandidate, ...]  # the one that serves first
    decided: bool
    pinned: bool
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class ScheduleSummary:
    """Plan of one device, shape and batch size. Latencies in microseconds."""

    plan_id: str
    device: str
    batch_size: int
    planner: str
    stages: int
    groups: int  # over all stages
    measured_us: float  # at registration; ``contest`` has what service shows
    sequential_us: float  # in the same run
    speedup: float  # over sequential, median of the turns in which both ran; 0.0: not known
    promoted: bool  # False: the sequential plan serves: this one is not faster
    precision: str = ""  # that it computes in; empty from servers that know FP32 only
    max_rel_error: float = 0.0  # of outputs against FP32, relative to the largest element
    speedup_least: float | None = None  # interval of ``speedup`` (90 %); None: not known
    speedup_most: float | None = None
    spread: float | None = None  # of the runs: (75th - 25th percentile) / median
    sequential_spread: float | None = None
    side_by_side: SideBySide | None = None  # under load; None: one after the other on all threads
    samples: int = 0  # that ``max_rel_error`` was measured on; 0: seeded inputs
    top_agreement: float | None = None  # part of the samples with the reference's top class
    best_other: str = ""  # fastest candidate of the other runtimes; empty: none is known
    best_other_ratio: float = 0.0  # its latency over that of what serves
    shapes: str = ""  # extents that it is made for, other than the batch, e.g. "length=64"
    contest: PlanContest | None = None  # how its plans fare in service; None: an older server

    def _repr_html_(self) -> str:
        return notebook.summary_html(self)


@dataclass(frozen=True, slots=True)
class PaddedAxis:
    """Whether requests may be padded along an axis that they choose, as the import found."""

    axis: str
    exact: bool
    inputs: Mapping[str, str]  # of inputs that have the axis: "zeros", "mask" or "repeat"
    up_to: int  # largest extent that was looked at
    error: float  # the largest of trials, relative to the largest element of an output
    shown_by: str  # "request", or of an earlier version "construction" or "trial"
    reason: str  # why it is not exact
    tried: Mapping[str, float]  # way -> error in trials

    def __str__(self) -> str:
        if not self.exact:
            return f"{self.axis}: not padded: {self.reason}"
        ways = ", ".join(f"{name} by {way}" for name, way in self.inputs.items())
        return (
            f"{self.axis}: padding is exact up to {self.up_to} ({ways}; by {self.shown_by}, "
            f"error {self.error:.1e})"
        )


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of requests along the axis that they are padded along, and those with schedules."""

    axis: str
    rows: Mapping[int, int]  # that were answered, by length; long ones in steps
    scheduled: tuple[int, ...]

    def __str__(self) -> str:
        scheduled = ", ".join(map(str, self.scheduled)) or "none"
        return f"{self.axis}: scheduled lengths: {scheduled}"


@dataclass(frozen=True, slots=True)
class Model:
    """One version of a model."""

    name: str
    version: str
    state: ModelState
    message: str
    sha256: str
    size_bytes: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batched: bool  # requests may carry any number of rows
    schedules: tuple[ScheduleSummary, ...]
    warnings: tuple[str, ...]
    created_unix: float
    # Extents that schedules are made for, where file and registration leave them open.
    guessed_extents: Mapping[str, int] = field(default_factory=dict)
    padding: tuple[PaddedAxis, ...] = ()  # one for each axis that requests choose
    lengths: Lengths | None = None  # None: requests are not padded
    rows: str = ""  # why requests share no batch: the operator that may combine their rows

    def _repr_html_(self) -> str:
        return notebook.model_html(self)


@dataclass(frozen=True, slots=True)
class Timing:
    """Time of a request on the server, by part, in microseconds."""

    queue_us: int  # accepted until its first batch was sent to the device, without prepare_us
    compute_us: int  # on the device, copies included
    total_us: int  # accepted until answered
    prepare_us: int = 0  # until shapes that are new to the device were prepared


@dataclass(frozen=True, slots=True)
class InferRequest:
    """One request of ``infer_stream``."""

    model: str
    inputs: Mapping[str, Array] | Array  # an array alone: of the model's only input
    outputs: Sequence[str] | None = None  # None: all
    version: str | int | None = None  # None: the newest that serves
    request_id: str | None = None  # None: one is made up
    priority: int = 0  # 1 (goes first) to 10; 0: the default
    timeout_s: float | None = None  # for this request alone, beside that of the stream


@dataclass(frozen=True, slots=True)
class InferResult:
    """Answer of a model. The arrays are read-only; copy one to write to it."""

    outputs: dict[str, Array]
    timing: Timing
    batch_size: int  # rows of the batch this request rode in, padding included
    batch_rows: int  # rows of that batch that belonged to requests
    plan_id: str  # names what ran by its content; "sequential" without a schedule
    model: str
    version: str
    request_id: str

    def _repr_html_(self) -> str:
        return notebook.result_html(self)


@dataclass(frozen=True, slots=True)
class StreamAnswer:
    """Answer to one request of ``infer_stream``: a result or an error, never both."""

    request_id: str
    result: InferResult | None = None
    error: BraidError | None = None

    def __post_init__(self) -> None:
        assert (self.result is None) != (self.error is None), "either a result or an error"

    def unwrap(self) -> InferResult:
        """Return the result, or raise the error."""
        if self.result is None:
            assert self.error is not None
            raise self.error
        return self.result


def version_text(version: str | int | None) -> str:
    """Text of a version on the wire; empty for None, the newest."""
    return "" if version is None else str(version)


def job_from_wire(message: admin_pb2.Job) -> Job:
    eta_s = message.eta_seconds if message.eta_seconds >= 0 else None
    return replace(record_of(message, Job), eta_s=eta_s)


def node_from_wire(message: admin_pb2.Node) -> Node:
    return replace(record_of(message, Node), beat_age_s=message.beat_age_seconds)


def accepted_job(message: admin_pb2.RegisterModelResponse) -> Job:
    """Read the job from the answer to an upload; older servers do not say its state."""
    field_of_state = message.DESCRIPTOR.fields_by_name["state"]
    state = _one(field_of_state, message.state) if message.state else JobState.QUEUED
    is_known = message.already_registered
    return Job(message.job_id, message.model, message.version, state, already_registered=is_known)


def documents_from_wire(message: admin_pb2.GetScheduleResponse) -> notebook.ScheduleDocuments:
    """Read the JSON objects of a schedule, or raise ServerError."""
    try:
        documents = json.loads(message.schedule_json), json.loads(message.graph_json)
        return notebook.ScheduleDocuments(*map(dict, documents))
    except (ValueError, TypeError, RecursionError) as error:
        raise ServerError(f"{UNREADABLE}: {error}") from None


def shapes_to_wire(shapes: Shapes) -> dict[str, admin_pb2.Shape]:
    return {name: admin_pb2.Shape(dims=dims) for name, dims in shapes.items()}


def record_of(message: Message, kind: type[R]) -> R:
    """Read the fields that a message and a kind of record both have, by their names."""
    on_wire = message.DESCRIPTOR.fields_by_name
    named = (each.name for each in fields(kind) if each.name in on_wire)  # type: ignore[arg-type]
    return kind(**{name: _value(on_wire[name], message) for name in named})


def _value(of: Any, message: Message) -> Any:
    """Read a field: lists as tuples, messages as records; None: it may be absent, and is."""
    value = getattr(message, of.name)
    if isinstance(value, Mapping):
        return dict(sorted(value.items()))
    if isinstance(value, MutableSequence):
        return tuple(_one(of, each) for each in value)
    return _one(of, value) if not of.has_presence or message.HasField(of.name) else None


def _one(of: Any, value: Any) -> Any:
    if of.enum_type is not None:
        states, found = _STATES[of.enum_type.full_name], of.enum_type.values_by_number.get(value)
        return states.__members__.get(found.name if found else "", states("UNKNOWN"))
    if of.message_type is None:
        return value
    if (kind := _KINDS.get(of.message_type.name)) is None:  # an extent
        return getattr(value, value.WhichOneof("extent") or "fixed")
    return record_of(value, kind)


_STATES = {"braid.v1.Job.State": JobState, "braid.v1.Model.State": ModelState}
_KINDS: Mapping[str, type] = {
    kind.__name__: kind
    for kind in (
        *(Allowance, TensorSpec, SideBySide, PlanCandidate, PlanContest),
        *(ScheduleSummary, PaddedAxis, Lengths),
    )
}
"""Enums, and records of messages within messages, by their names on the wire."""
