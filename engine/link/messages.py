"""Messages between the front end and a device worker, one class each. Loads no torch.

    front end                                      worker
    WorkerCall(number, request) ──────link──────>  request: one of the classes below
        <── WorkerProgress ──                      now and then, of calls that take long
        <── WorkerAnswer(call, reply) ──           reply: as the request's class says,
        <── WorkerFailure ──                       or an error of the same class as in the worker
        <── DeviceIsLost ──                        before the worker ends by itself
    AskStatus, StopRun, StopStep ──control──>      engine/worker/process/status_thread.py
        <── WorkerStatus ──

One message is one frame (frames.py); its JSON form follows from its fields (core/json_form.py).
Tensors never travel here: they lie in shared memory, and messages name offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from braid.core import errors
from braid.core.device_state import UNKNOWN, DeviceState
from braid.core.errors import BraidError, ResourceExhausted, WorkerFault
from braid.core.graph import OpGraph
from braid.core.measurement import DeviceFacts, PlanMeasurement, StageLatency
from braid.core.plan import EnginePart
from braid.core.program import PlansToCompare, PlanToRun, ProgramKey, UnitKernels
from braid.core.quantisation import Quantisation
from braid.core.schedule import Stage
from braid.core.tensor import TensorType

ReplyT_co = TypeVar("ReplyT_co", covariant=True)


class WorkerRequest(Generic[ReplyT_co]):
    """A request to a worker, answered with a reply of one class."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ProgramRequest(WorkerRequest[ReplyT_co]):
    """A request about one program, whose model the worker has loaded."""

    program: ProgramKey


@dataclass(frozen=True, slots=True)
class MeasurementRequest(ProgramRequest[ReplyT_co]):
    """A request that the worker works for between inferences; it can be dropped."""


# Replies that are no fact of their own.


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Reply to a request that asks for nothing."""


@dataclass(frozen=True, slots=True)
class DeviceDescription:
    """The device of a worker, and the software on it."""

    device_key: str  # canonical text of all that a latency measured there depends on
    threads: int  # groups that can run side by side
    precisions: tuple[str, ...]  # of braid.core.precision
    runtimes: tuple[str, ...]  # that can run whole models there, of braid.core.runtimes
    software: Mapping[str, str]  # versions by name
    state: DeviceState = UNKNOWN  # when it was asked for


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Memory of a model in bytes; a session in another runtime counts as the model's file."""

    host_weights: int = 0
    gpu_weights: int = 0
    activations: int = 0  # of a run of that executable; 0: not known
    gpu_reserved: int | None = None  # by the whole worker; None: no memory of its own
    sessions: int = 0  # of other runtimes, on the device, about


@dataclass(frozen=True, slots=True)
class ExecutableReady:
    """An executable is ready to run."""

    outputs: Mapping[str, TensorType]  # by the name the caller sees; names follow the content
    run_s: float  # seconds that its first run took; 0: it did not run
    needs_finite: bool = False  # whether its runs depend on inputs being finite
    heap_bytes: int = 0  # of its outputs, about, beside what the inputs' strings take
    memory: ModelMemory = ModelMemory()
    size_bytes: int = 0  # that its release gives back, about
    work_s: float = 0.0  # seconds that it took to make, without requests in between


@dataclass(frozen=True, slots=True)
class RunDone:
    """The outputs of a run lie in its slot."""

    compute_us: int  # time on the device


@dataclass(frozen=True, slots=True)
class ProgramDescription:
    """The static graph of a program; its operators are the schedule units."""

    graph: OpGraph


@dataclass(frozen=True, slots=True)
class ProgramKernels:
    """Units of a program that more than one kernel can run."""

    kernels: tuple[UnitKernels, ...]


@dataclass(frozen=True, slots=True)
class PlanMeasurements:
    """Measurements of whole models, in the order of the request: plans, then runtimes, of each."""

    plans: tuple[PlanMeasurement, ...]


@dataclass(frozen=True, slots=True)
class PartMeasurement:
    """Latency of parts that run side by side, on the values that other units give them."""

    latency_us: float | None = None  # None: one is refused
    problem: str = ""  # why


@dataclass(frozen=True, slots=True)
class PartMeasurements:
    """Measurements of stages of parts, in the order of the request."""

    stages: tuple[PartMeasurement, ...]


@dataclass(frozen=True, slots=True)
class PlaceMeasurement:
    """Runs side by side: latency of one in microseconds, and what they compute together."""

    count: int
    runtime: str  # of braid.core.runtimes; empty: the sequential plan
    latency_us: float  # median over turns
    ratios: tuple[float, ...]  # runs a second over those on all threads, one a turn


@dataclass(frozen=True, slots=True)
class ThroughputMeasurements:
    """Ways of running side by side that run and do not err; those clearly slower had few turns."""

    ways: tuple[PlaceMeasurement, ...]


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """What happened in a search since it was told last."""

    done: int  # of the first question's latencies
    total: int  # 0: the planner searches by now
    measured_s: tuple[float, ...]  # that each stage took which was measured
    reused: int  # latencies that needed no measurement
    learned: int  # of the measured ones, those that were not cached before
    latencies: Mapping[str, StageLatency]  # to be cached, by signature


@dataclass(frozen=True, slots=True)
class SearchResult:
    """All plans that a planner offers."""

    plans: str  # JSON, which takes long to read where there are many units


# Requests.


@dataclass(frozen=True, slots=True)
class DescribeDevice(WorkerRequest[DeviceDescription]):
    """Describe the device."""


@dataclass(frozen=True, slots=True)
class LoadModel(WorkerRequest[Acknowledged]):
    """Load the artefact at a path; does nothing if it is loaded."""

    digest: str
    path: str


@dataclass(frozen=True, slots=True)
class UnloadModel(WorkerRequest[Acknowledged]):
    """Forget a model and everything prepared for it."""

    digest: str


@dataclass(frozen=True, slots=True)
class PrepareExecutable(WorkerRequest[ExecutableReady]):
    """Make an executable; ``runs_first`` False leaves the cold first run to a request."""

    number: int
    to_run: PlanToRun
    runs_first: bool = True


@dataclass(frozen=True, slots=True)
class ReleaseExecutable(WorkerRequest[Acknowledged]):
    """Forget an executable."""

    number: int


@dataclass(frozen=True, slots=True)
class RunExecutable(WorkerRequest[RunDone]):
    """Run an executable on the slot at an offset of the shared memory, in bytes."""

    number: int
    offset: int
    is_finite: bool = False  # no input is NaN or infinite; False: not known
    program: ProgramKey | None = None  # what is run, if the executable takes any shape


@dataclass(frozen=True, slots=True)
class DropMeasurement(WorkerRequest[Acknowledged]):
    """Drop the measurement that a call asked for; that call is never answered."""

    call: int


@dataclass(frozen=True, slots=True)
class DescribeProgram(ProgramRequest[ProgramDescription]):
    """Describe the static graph of a program."""


@dataclass(frozen=True, slots=True)
class FindFacts(MeasurementRequest[DeviceFacts]):
    """Find what planners may know of the device and a program's units."""


@dataclass(frozen=True, slots=True)
class FindKernels(MeasurementRequest[ProgramKernels]):
    """Find the units of a program that more than one kernel can run."""


@dataclass(frozen=True, slots=True)
class MeasureStage(MeasurementRequest[StageLatency]):
    """Measure one stage of a program."""

    stage: Stage
    threads: int | None = None  # how many it may use; None: all
    variant: str = ""  # kernel that its only unit runs on; "": the usual one
    hopeless_us: float | None = None  # a stage that takes longer need not be measured with care


@dataclass(frozen=True, slots=True)
class ComparePlans(MeasurementRequest[PlanMeasurements]):
    """Measure whole models in turns, the first plan of ``program`` being the baseline."""

    fields: tuple[PlansToCompare, ...]  # of one program in several precisions, that one first
    samples: str = ""  # path of the inputs that errors are measured on; empty: seeded ones
    is_brief: bool = False  # a few runs of each, to tell who is hopeless
    is_timed: bool = True  # False: each runs once for its error, and has no latency


@dataclass(frozen=True, slots=True)
class MeasureParts(MeasurementRequest[PartMeasurements]):
    """Measure stages of parts in engines, and check what they compute.

    Parts of a stage run side by side on a thread each; one alone has the threads that it names.
    """

    stages: tuple[tuple[EnginePart, ...], ...]


@dataclass(frozen=True, slots=True)
class SearchPlans(MeasurementRequest[SearchResult]):
    """Plan a program, and measure what the planner asks for; answered by a bench that searches."""

    planner: str  # its name and options, as PlannerSettings reads them
    facts: DeviceFacts
    cached_us: str  # latencies that need no measurement, by signature: JSON
    memory_bytes: int  # that the search may take
    seconds: float  # CPU time that it may take from one question to the next


@dataclass(frozen=True, slots=True)
class Calibrate(MeasurementRequest[Quantisation]):
    """Find how a program computes on 8-bit integers."""

    samples: str  # path of the inputs that ranges are taken from
    tolerance: float  # of outputs, relative to the largest element


@dataclass(frozen=True, slots=True)
class CompareThroughput(MeasurementRequest[ThroughputMeasurements]):
    """Measure runs side by side on parts of the threads, beside runs of a plan on all of them."""

    to_run: PlanToRun
    ways: tuple[str, ...]  # "": the sequential plan; runtimes, with the whole model
    tolerance: float  # of outputs against that plan's, relative to the largest element


AnyRequest = (
    DescribeDevice
    | LoadModel
    | UnloadModel
    | PrepareExecutable
    | ReleaseExecutable
    | RunExecutable
    | DropMeasurement
    | DescribeProgram
    | FindFacts
    | FindKernels
    | MeasureStage
    | ComparePlans
    | MeasureParts
    | SearchPlans
    | Calibrate
    | CompareThroughput
)

AnyReply = (
    Acknowledged
    | DeviceDescription
    | ExecutableReady
    | RunDone
    | ProgramDescription
    | DeviceFacts
    | ProgramKernels
    | StageLatency
    | PlanMeasurements
    | PartMeasurements
    | SearchResult
    | Quantisation
    | ThroughputMeasurements
)

# What travels on the link.


@dataclass(frozen=True, slots=True)
class WorkerCall:
    """A request, under a number that its answers name."""

    number: int
    request: AnyRequest


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """The reply to a call."""

    call: int
    reply: AnyReply


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """How far a call is: the fraction done, in [0, 1], or what happened in a search."""

    call: int
    fraction: float
    search: SearchProgress | None = None


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """The error that a call ends with."""

    call: int
    error_class: str  # of braid.core.errors: the error's, or the nearest that it derives from
    text: str
    retry_after_s: float | None = None

    @staticmethod
    def of(call: int, error: BraidError) -> WorkerFailure:
        retry_after_s = error.retry_after_s if isinstance(error, ResourceExhausted) else None
        names = (
            kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__
        )
        return WorkerFailure(call, next(names), str(error), retry_after_s)

    @property
    def error(self) -> BraidError:
        kind = getattr(errors, self.error_class, WorkerFault)
        if not (isinstance(kind, type) and issubclass(kind, BraidError)):
            kind = WorkerFault
        revived = BraidError.__new__(kind)
        Exception.__init__(revived, self.text)
        if isinstance(revived, ResourceExhausted):
            revived.retry_after_s = self.retry_after_s
        return revived


@dataclass(frozen=True, slots=True)
class DeviceIsLost:
    """The worker ends by itself, as its device is of no use to it any more."""

    reason: str


# What travels on the control socket.


@dataclass(frozen=True, slots=True)
class AskStatus:
    """Answer with a WorkerStatus; asked about twice a second."""


@dataclass(frozen=True, slots=True)
class StopRun:
    """End the run of a call, or do not begin it."""

    call: int
    reason: str


@dataclass(frozen=True, slots=True)
class StopStep:
    """End the work under way that is no run."""

    reason: str


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """Present work of a worker's device thread, with seconds since its start."""

    call: int | None = None  # of the oldest run; None: nothing runs
    run_s: float = 0.0
    step_s: float | None = None  # of the present step of other work; None: there is none
    beside: tuple[tuple[int, float], ...] = ()  # other calls that run, each with its seconds


ControlOrder = AskStatus | StopRun | StopStep

Message = (
    WorkerCall
    | WorkerAnswer
    | WorkerProgress
    | WorkerFailure
    | DeviceIsLost
    | ControlOrder
    | WorkerStatus
)
