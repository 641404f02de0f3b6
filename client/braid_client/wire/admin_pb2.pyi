from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterModelRequest(_message.Message):
    __slots__ = ("header", "chunk", "footer", "samples")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    FOOTER_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    header: RegisterModelHeader
    chunk: bytes
    footer: RegisterModelFooter
    samples: bytes
    def __init__(self, header: _Optional[_Union[RegisterModelHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ..., footer: _Optional[_Union[RegisterModelFooter, _Mapping]] = ..., samples: _Optional[bytes] = ...) -> None: ...

class RegisterModelHeader(_message.Message):
    __slots__ = ("name", "format", "batch_sizes", "planner", "input_shapes", "precision", "accepted_error", "pad", "no_pad", "more_input_shapes", "lengths", "residency", "batchable", "pin")
    class Format(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        FORMAT_UNSPECIFIED: _ClassVar[RegisterModelHeader.Format]
        FORMAT_ONNX: _ClassVar[RegisterModelHeader.Format]
    FORMAT_UNSPECIFIED: RegisterModelHeader.Format
    FORMAT_ONNX: RegisterModelHeader.Format
    class InputShapesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Shape
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Shape, _Mapping]] = ...) -> None: ...
    class PadEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZES_FIELD_NUMBER: _ClassVar[int]
    PLANNER_FIELD_NUMBER: _ClassVar[int]
    INPUT_SHAPES_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_ERROR_FIELD_NUMBER: _ClassVar[int]
    PAD_FIELD_NUMBER: _ClassVar[int]
    NO_PAD_FIELD_NUMBER: _ClassVar[int]
    MORE_INPUT_SHAPES_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    RESIDENCY_FIELD_NUMBER: _ClassVar[int]
    BATCHABLE_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    name: str
    format: RegisterModelHeader.Format
    batch_sizes: _containers.RepeatedScalarFieldContainer[int]
    planner: PlannerOptions
    input_shapes: _containers.MessageMap[str, Shape]
    precision: str
    accepted_error: float
    pad: _containers.ScalarMap[str, str]
    no_pad: bool
    more_input_shapes: _containers.RepeatedCompositeFieldContainer[InputShapes]
    lengths: str
    residency: Residency
    batchable: bool
    pin: str
    def __init__(self, name: _Optional[str] = ..., format: _Optional[_Union[RegisterModelHeader.Format, str]] = ..., batch_sizes: _Optional[_Iterable[int]] = ..., planner: _Optional[_Union[PlannerOptions, _Mapping]] = ..., input_shapes: _Optional[_Mapping[str, Shape]] = ..., precision: _Optional[str] = ..., accepted_error: _Optional[float] = ..., pad: _Optional[_Mapping[str, str]] = ..., no_pad: bool = ..., more_input_shapes: _Optional[_Iterable[_Union[InputShapes, _Mapping]]] = ..., lengths: _Optional[str] = ..., residency: _Optional[_Union[Residency, _Mapping]] = ..., batchable: bool = ..., pin: _Optional[str] = ...) -> None: ...

class Shape(_message.Message):
    __slots__ = ("dims",)
    DIMS_FIELD_NUMBER: _ClassVar[int]
    dims: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dims: _Optional[_Iterable[int]] = ...) -> None: ...

class InputShapes(_message.Message):
    __slots__ = ("shapes",)
    class ShapesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Shape
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Shape, _Mapping]] = ...) -> None: ...
    SHAPES_FIELD_NUMBER: _ClassVar[int]
    shapes: _containers.MessageMap[str, Shape]
    def __init__(self, shapes: _Optional[_Mapping[str, Shape]] = ...) -> None: ...

class PlannerOptions(_message.Message):
    __slots__ = ("name", "max_group_ops", "max_groups")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MAX_GROUP_OPS_FIELD_NUMBER: _ClassVar[int]
    MAX_GROUPS_FIELD_NUMBER: _ClassVar[int]
    name: str
    max_group_ops: int
    max_groups: int
    def __init__(self, name: _Optional[str] = ..., max_group_ops: _Optional[int] = ..., max_groups: _Optional[int] = ...) -> None: ...

class RegisterModelFooter(_message.Message):
    __slots__ = ("sha256",)
    SHA256_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    def __init__(self, sha256: _Optional[str] = ...) -> None: ...

class RegisterModelResponse(_message.Message):
    __slots__ = ("job_id", "model", "version", "already_registered", "state")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ALREADY_REGISTERED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    model: str
    version: str
    already_registered: bool
    state: Job.State
    def __init__(self, job_id: _Optional[str] = ..., model: _Optional[str] = ..., version: _Optional[str] = ..., already_registered: bool = ..., state: _Optional[_Union[Job.State, str]] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "model", "version", "state", "progress", "detail", "eta_seconds", "done", "total", "message", "created_unix", "updated_unix")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Job.State]
        QUEUED: _ClassVar[Job.State]
        IMPORTING: _ClassVar[Job.State]
        PROFILING: _ClassVar[Job.State]
        SCHEDULING: _ClassVar[Job.State]
        VERIFYING: _ClassVar[Job.State]
        READY: _ClassVar[Job.State]
        FAILED: _ClassVar[Job.State]
        CANCELLED: _ClassVar[Job.State]
        UNSCHEDULED: _ClassVar[Job.State]
    STATE_UNSPECIFIED: Job.State
    QUEUED: Job.State
    IMPORTING: Job.State
    PROFILING: Job.State
    SCHEDULING: Job.State
    VERIFYING: Job.State
    READY: Job.State
    FAILED: Job.State
    CANCELLED: Job.State
    UNSCHEDULED: Job.State
    ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    ETA_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_FIELD_NUMBER: _ClassVar[int]
    UPDATED_UNIX_FIELD_NUMBER: _ClassVar[int]
    id: str
    model: str
    version: str
    state: Job.State
    progress: float
    detail: str
    eta_seconds: float
    done: int
    total: int
    message: str
    created_unix: float
    updated_unix: float
    def __init__(self, id: _Optional[str] = ..., model: _Optional[str] = ..., version: _Optional[str] = ..., state: _Optional[_Union[Job.State, str]] = ..., progress: _Optional[float] = ..., detail: _Optional[str] = ..., eta_seconds: _Optional[float] = ..., done: _Optional[int] = ..., total: _Optional[int] = ..., message: _Optional[str] = ..., created_unix: _Optional[float] = ..., updated_unix: _Optional[float] = ...) -> None: ...

class WatchJobRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class CancelJobRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("model", "limit")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    model: str
    limit: int
    def __init__(self, model: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ...) -> None: ...

class TensorSpec(_message.Message):
    __slots__ = ("name", "dtype", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedCompositeFieldContainer[Extent]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[_Union[Extent, _Mapping]]] = ...) -> None: ...

class Extent(_message.Message):
    __slots__ = ("fixed", "symbol")
    FIXED_FIELD_NUMBER: _ClassVar[int]
    SYMBOL_FIELD_NUMBER: _ClassVar[int]
    fixed: int
    symbol: str
    def __init__(self, fixed: _Optional[int] = ..., symbol: _Optional[str] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "version", "state", "message", "sha256", "size_bytes", "inputs", "outputs", "batched", "schedules", "warnings", "created_unix", "guessed_extents", "padding", "lengths", "rows")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Model.State]
        LOADING: _ClassVar[Model.State]
        SERVING: _ClassVar[Model.State]
        FAILED: _ClassVar[Model.State]
        DRAINING: _ClassVar[Model.State]
        UNLOADED: _ClassVar[Model.State]
    STATE_UNSPECIFIED: Model.State
    LOADING: Model.State
    SERVING: Model.State
    FAILED: Model.State
    DRAINING: Model.State
    UNLOADED: Model.State
    class GuessedExtentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    BATCHED_FIELD_NUMBER: _ClassVar[int]
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_FIELD_NUMBER: _ClassVar[int]
    GUESSED_EXTENTS_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    state: Model.State
    message: str
    sha256: str
    size_bytes: int
    inputs: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    outputs: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    batched: bool
    schedules: _containers.RepeatedCompositeFieldContainer[ScheduleSummary]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    created_unix: float
    guessed_extents: _containers.ScalarMap[str, int]
    padding: _containers.RepeatedCompositeFieldContainer[PaddedAxis]
    lengths: Lengths
    rows: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., state: _Optional[_Union[Model.State, str]] = ..., message: _Optional[str] = ..., sha256: _Optional[str] = ..., size_bytes: _Optional[int] = ..., inputs: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., batched: bool = ..., schedules: _Optional[_Iterable[_Union[ScheduleSummary, _Mapping]]] = ..., warnings: _Optional[_Iterable[str]] = ..., created_unix: _Optional[float] = ..., guessed_extents: _Optional[_Mapping[str, int]] = ..., padding: _Optional[_Iterable[_Union[PaddedAxis, _Mapping]]] = ..., lengths: _Optional[_Union[Lengths, _Mapping]] = ..., rows: _Optional[str] = ...) -> None: ...

class Lengths(_message.Message):
    __slots__ = ("axis", "rows", "scheduled")
    class RowsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    AXIS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULED_FIELD_NUMBER: _ClassVar[int]
    axis: str
    rows: _containers.ScalarMap[int, int]
    scheduled: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, axis: _Optional[str] = ..., rows: _Optional[_Mapping[int, int]] = ..., scheduled: _Optional[_Iterable[int]] = ...) -> None: ...

class PaddedAxis(_message.Message):
    __slots__ = ("axis", "exact", "inputs", "up_to", "error", "shown_by", "reason", "tried")
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class TriedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    AXIS_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    UP_TO_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SHOWN_BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TRIED_FIELD_NUMBER: _ClassVar[int]
    axis: str
    exact: bool
    inputs: _containers.ScalarMap[str, str]
    up_to: int
    error: float
    shown_by: str
    reason: str
    tried: _containers.ScalarMap[str, float]
    def __init__(self, axis: _Optional[str] = ..., exact: bool = ..., inputs: _Optional[_Mapping[str, str]] = ..., up_to: _Optional[int] = ..., error: _Optional[float] = ..., shown_by: _Optional[str] = ..., reason: _Optional[str] = ..., tried: _Optional[_Mapping[str, float]] = ...) -> None: ...

class ScheduleSummary(_message.Message):
    __slots__ = ("plan_id", "device", "batch_size", "planner", "stages", "groups", "measured_us", "sequential_us", "speedup", "promoted", "precision", "max_rel_error", "speedup_least", "speedup_most", "spread", "sequential_spread", "side_by_side", "samples", "top_agreement", "best_other", "best_other_ratio", "shapes", "contest")
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    PLANNER_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_US_FIELD_NUMBER: _ClassVar[int]
    SEQUENTIAL_US_FIELD_NUMBER: _ClassVar[int]
    SPEEDUP_FIELD_NUMBER: _ClassVar[int]
    PROMOTED_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    MAX_REL_ERROR_FIELD_NUMBER: _ClassVar[int]
    SPEEDUP_LEAST_FIELD_NUMBER: _ClassVar[int]
    SPEEDUP_MOST_FIELD_NUMBER: _ClassVar[int]
    SPREAD_FIELD_NUMBER: _ClassVar[int]
    SEQUENTIAL_SPREAD_FIELD_NUMBER: _ClassVar[int]
    SIDE_BY_SIDE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    TOP_AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    BEST_OTHER_FIELD_NUMBER: _ClassVar[int]
    BEST_OTHER_RATIO_FIELD_NUMBER: _ClassVar[int]
    SHAPES_FIELD_NUMBER: _ClassVar[int]
    CONTEST_FIELD_NUMBER: _ClassVar[int]
    plan_id: str
    device: str
    batch_size: int
    planner: str
    stages: int
    groups: int
    measured_us: float
    sequential_us: float
    speedup: float
    promoted: bool
    precision: str
    max_rel_error: float
    speedup_least: float
    speedup_most: float
    spread: float
    sequential_spread: float
    side_by_side: SideBySide
    samples: int
    top_agreement: float
    best_other: str
    best_other_ratio: float
    shapes: str
    contest: PlanContest
    def __init__(self, plan_id: _Optional[str] = ..., device: _Optional[str] = ..., batch_size: _Optional[int] = ..., planner: _Optional[str] = ..., stages: _Optional[int] = ..., groups: _Optional[int] = ..., measured_us: _Optional[float] = ..., sequential_us: _Optional[float] = ..., speedup: _Optional[float] = ..., promoted: bool = ..., precision: _Optional[str] = ..., max_rel_error: _Optional[float] = ..., speedup_least: _Optional[float] = ..., speedup_most: _Optional[float] = ..., spread: _Optional[float] = ..., sequential_spread: _Optional[float] = ..., side_by_side: _Optional[_Union[SideBySide, _Mapping]] = ..., samples: _Optional[int] = ..., top_agreement: _Optional[float] = ..., best_other: _Optional[str] = ..., best_other_ratio: _Optional[float] = ..., shapes: _Optional[str] = ..., contest: _Optional[_Union[PlanContest, _Mapping]] = ...) -> None: ...

class PlanContest(_message.Message):
    __slots__ = ("candidates", "decided", "pinned", "text")
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    candidates: _containers.RepeatedCompositeFieldContainer[PlanCandidate]
    decided: bool
    pinned: bool
    text: str
    def __init__(self, candidates: _Optional[_Iterable[_Union[PlanCandidate, _Mapping]]] = ..., decided: bool = ..., pinned: bool = ..., text: _Optional[str] = ...) -> None: ...

class PlanCandidate(_message.Message):
    __slots__ = ("name", "pairs", "ratio", "low", "high", "share", "runs", "latency_us", "plan_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    RATIO_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    LATENCY_US_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    pairs: int
    ratio: float
    low: float
    high: float
    share: float
    runs: int
    latency_us: float
    plan_id: str
    def __init__(self, name: _Optional[str] = ..., pairs: _Optional[int] = ..., ratio: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ..., share: _Optional[float] = ..., runs: _Optional[int] = ..., latency_us: _Optional[float] = ..., plan_id: _Optional[str] = ...) -> None: ...

class SideBySide(_message.Message):
    __slots__ = ("plan_id", "count", "planner", "latency_us", "gain", "gain_least", "gain_most")
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PLANNER_FIELD_NUMBER: _ClassVar[int]
    LATENCY_US_FIELD_NUMBER: _ClassVar[int]
    GAIN_FIELD_NUMBER: _ClassVar[int]
    GAIN_LEAST_FIELD_NUMBER: _ClassVar[int]
    GAIN_MOST_FIELD_NUMBER: _ClassVar[int]
    plan_id: str
    count: int
    planner: str
    latency_us: float
    gain: float
    gain_least: float
    gain_most: float
    def __init__(self, plan_id: _Optional[str] = ..., count: _Optional[int] = ..., planner: _Optional[str] = ..., latency_us: _Optional[float] = ..., gain: _Optional[float] = ..., gain_least: _Optional[float] = ..., gain_most: _Optional[float] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model", "version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class DeleteModelRequest(_message.Message):
    __slots__ = ("model", "version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class DeleteModelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServingRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class ServingConfig(_message.Message):
    __slots__ = ("model", "versions", "labels", "batching", "residency", "pinned")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    BATCHING_FIELD_NUMBER: _ClassVar[int]
    RESIDENCY_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    model: str
    versions: VersionPolicy
    labels: _containers.ScalarMap[str, int]
    batching: Batching
    residency: Residency
    pinned: str
    def __init__(self, model: _Optional[str] = ..., versions: _Optional[_Union[VersionPolicy, _Mapping]] = ..., labels: _Optional[_Mapping[str, int]] = ..., batching: _Optional[_Union[Batching, _Mapping]] = ..., residency: _Optional[_Union[Residency, _Mapping]] = ..., pinned: _Optional[str] = ...) -> None: ...

class PinPlanRequest(_message.Message):
    __slots__ = ("model", "plan")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    model: str
    plan: str
    def __init__(self, model: _Optional[str] = ..., plan: _Optional[str] = ...) -> None: ...

class Residency(_message.Message):
    __slots__ = ("kind", "idle_seconds", "refuses")
    KIND_FIELD_NUMBER: _ClassVar[int]
    IDLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REFUSES_FIELD_NUMBER: _ClassVar[int]
    kind: str
    idle_seconds: float
    refuses: bool
    def __init__(self, kind: _Optional[str] = ..., idle_seconds: _Optional[float] = ..., refuses: bool = ...) -> None: ...

class VersionPolicy(_message.Message):
    __slots__ = ("latest", "specific")
    LATEST_FIELD_NUMBER: _ClassVar[int]
    SPECIFIC_FIELD_NUMBER: _ClassVar[int]
    latest: int
    specific: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, latest: _Optional[int] = ..., specific: _Optional[_Iterable[int]] = ...) -> None: ...

class Batching(_message.Message):
    __slots__ = ("max_wait_ms", "max_queue_requests", "max_queue_rows", "share", "max_queue_ms")
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_ROWS_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    max_wait_ms: float
    max_queue_requests: int
    max_queue_rows: int
    share: float
    max_queue_ms: float
    def __init__(self, max_wait_ms: _Optional[float] = ..., max_queue_requests: _Optional[int] = ..., max_queue_rows: _Optional[int] = ..., share: _Optional[float] = ..., max_queue_ms: _Optional[float] = ...) -> None: ...

class GetScheduleRequest(_message.Message):
    __slots__ = ("model", "version", "device", "batch_size", "shapes")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    SHAPES_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    device: str
    batch_size: int
    shapes: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., device: _Optional[str] = ..., batch_size: _Optional[int] = ..., shapes: _Optional[str] = ...) -> None: ...

class GetScheduleResponse(_message.Message):
    __slots__ = ("plan_id", "schedule_json", "graph_json")
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_JSON_FIELD_NUMBER: _ClassVar[int]
    GRAPH_JSON_FIELD_NUMBER: _ClassVar[int]
    plan_id: str
    schedule_json: str
    graph_json: str
    def __init__(self, plan_id: _Optional[str] = ..., schedule_json: _Optional[str] = ..., graph_json: _Optional[str] = ...) -> None: ...

class ScheduleAgainRequest(_message.Message):
    __slots__ = ("model", "version", "device", "batch_size")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    device: str
    batch_size: int
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., device: _Optional[str] = ..., batch_size: _Optional[int] = ...) -> None: ...

class ListNodesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListNodesResponse(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    def __init__(self, nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("id", "address", "device_keys", "version", "started_unix", "beat_age_seconds", "alive", "job_ids", "answers", "allowance")
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_KEYS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STARTED_UNIX_FIELD_NUMBER: _ClassVar[int]
    BEAT_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    ALLOWANCE_FIELD_NUMBER: _ClassVar[int]
    id: str
    address: str
    device_keys: _containers.RepeatedScalarFieldContainer[str]
    version: str
    started_unix: float
    beat_age_seconds: float
    alive: bool
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    answers: bool
    allowance: Allowance
    def __init__(self, id: _Optional[str] = ..., address: _Optional[str] = ..., device_keys: _Optional[_Iterable[str]] = ..., version: _Optional[str] = ..., started_unix: _Optional[float] = ..., beat_age_seconds: _Optional[float] = ..., alive: bool = ..., job_ids: _Optional[_Iterable[str]] = ..., answers: bool = ..., allowance: _Optional[_Union[Allowance, _Mapping]] = ...) -> None: ...

class Allowance(_message.Message):
    __slots__ = ("cpus", "cores", "memory_bytes", "memory_budget_bytes", "periods", "throttled_periods", "throttled_seconds")
    CPUS_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    PERIODS_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_PERIODS_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    cpus: float
    cores: int
    memory_bytes: int
    memory_budget_bytes: int
    periods: int
    throttled_periods: int
    throttled_seconds: float
    def __init__(self, cpus: _Optional[float] = ..., cores: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., memory_budget_bytes: _Optional[int] = ..., periods: _Optional[int] = ..., throttled_periods: _Optional[int] = ..., throttled_seconds: _Optional[float] = ...) -> None: ...
