"""Messages between the front end and a device worker, one class each. Loads no torch.

    front end                                      worker
    WorkerCall(number, request) ──────link──────>  request: one of the classes below
        <── WorkerProgress ──                      now and then, of calls that take long
        <── WorkerAnswer(call, reply) ──           reply: as the request's class says,
        <── WorkerFailure ──                       or an error of the same class as in the worker
        <── DeviceIsLost ──                        before the worker ends by itself
    AskStatus, StopRun, StopStep ──control──>      engine/worker/process/assembly.py
        <── WorkerStatus ──

One message is one frame (frames.py); its form follows from its fields (core/json_form.py).
Tensors never travel here: they lie in shared memory, and messages name offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from braid.core import errors
from braid.core.device_state import UNKNOWN, DeviceState
from braid.core.errors import BraidError, ResourceExhausted, WorkerFault
from braid.core.graph import OpGraph
from braid.core.json_form import Tagged
from braid.core.measurement import DeviceFacts, PlanMeasurement, StageLatency
from braid.core.plan import EnginePart
from braid.core.program import PlansToCompare, PlanToRun, ProgramKey, UnitKernels
from braid.core.quantisation import Quantisation
from braid.core.schedule import Stage
from braid.core.tensor import TensorType

ReplyT_co = TypeVar("ReplyT_co", covariant=True)


class WorkerRequest(Tagged, Generic[ReplyT_co], frozen=True):
    """A request to a worker, answered with a reply of one class."""


class ProgramRequest(WorkerRequest[ReplyT_co], frozen=True):
    """A request about one program, whose model the worker has loaded."""

    program: ProgramKey


class MeasurementRequest(ProgramRequest[ReplyT_co], frozen=True):
    """A request that the worker works for between inferences; it can be dropped."""


# Replies that are no fact of their own.


class Acknowledged(Tagged, frozen=True):
    """Reply to a request that asks for nothing."""


class DeviceDescription(Tagged, frozen=True):
    """The device of a worker, and the software on it."""

    device_key: str  # canonical text of all that a latency measured there depends on
    threads: int  # groups that can run side by side
    precisions: tuple[str, ...]  # of braid.core.precision
    runtimes: tuple[str, ...]  # that can run whole models there, of braid.core.runtimes
    software: Mapping[str, str]  # versions by name
    state: DeviceState = UNKNOWN  # when it was asked for


class ModelMemory(Tagged, frozen=True):
    """Memory of a model in bytes; a session in another runtime counts as the model's file."""

    host_weights: int = 0
    gpu_weights: int = 0
    activations: int = 0  # of a run of that executable; 0: not known
    gpu_reserved: int | None = None  # by the whole worker; None: no memory of its own
    sessions: int = 0  # of other runtimes, on the device, about


class ExecutableReady(Tagged, frozen=True):
    """An executable is ready to run."""

    outputs: Mapping[str, TensorType]  # by the name the caller sees; names follow the content
    run_s: float  # seconds that its first run took; 0: it did not run
    needs_finite: bool = False  # whether its runs depend on inputs being finite
    heap_bytes: int = 0  # of its outputs, about, beside what the inputs' strings take
    memory: ModelMemory = ModelMemory()
    size_bytes: int = 0  # that its release gives back, about
    work_s: float = 0.0  # seconds that it took to make, without requests in between


class RunDone(Tagged, frozen=True):
    """The outputs of a run lie in its slot."""

    compute_us: int  # time on the device


class ProgramDescription(Tagged, frozen=True):
    """The static graph of a program; its operators are the schedule units."""

    graph: OpGraph


class ProgramKernels(Tagged, frozen=True):
    """Units of a program that more than one kernel can run."""

    kernels: tuple[UnitKernels, ...]


class PlanMeasurements(Tagged, frozen=True):
    """Measurements of whole models, in the order of the request: plans, then runtimes, of each."""

    plans: tuple[PlanMeasurement, ...]


class PartMeasurement(Tagged, frozen=True):
    """Latency of parts that run side by side, on the values that other units give them."""

    latency_us: float | None = None  # None: one is refused
    problem: str = ""  # why


class PartMeasurements(Tagged, frozen=True):
    """Measurements of stages of parts, in the order of the request."""

    stages: tuple[PartMeasurement, ...]


class PlaceMeasurement(Tagged, frozen=True):
    """Runs side by side: latency of one in microseconds, and what they compute together."""

    count: int
    runtime: str  # of braid.core.runtimes; empty: the sequential plan
    latency_us: float  # median over turns
    ratios: tuple[float, ...]  # runs a second over those on all threads, one a turn


class ThroughputMeasurements(Tagged, frozen=True):
    """Ways of running side by side that run and do not err; those clearly slower had few turns."""

    ways: tuple[PlaceMeasurement, ...]


class Calibrated(Tagged, frozen=True):
    """How a program computes on 8-bit integers."""

    how: Quantisation


# Requests.


class DescribeDevice(WorkerRequest[DeviceDescription], frozen=True):
    """Describe the device."""


class LoadModel(WorkerRequest[Acknowledged], frozen=True):
    """Load the artefact at a path; does nothing if it is loaded."""

    digest: str
    path: str


class UnloadModel(WorkerRequest[Acknowledged], frozen=True):
    """Forget a model and everything prepared for it."""

    digest: str


class PrepareExecutable(WorkerRequest[ExecutableReady], frozen=True):
    """Make an executable; ``runs_first`` False leaves the cold first run to a request."""

    number: int
    to_run: PlanToRun
    runs_first: bool = True


class ReleaseExecutable(WorkerRequest[Acknowledged], frozen=True):
    """Forget an executable."""

    number: int


class RunExecutable(WorkerRequest[RunDone], frozen=True):
    """Run an executable on the slot at an offset of the shared memory, in bytes."""

    number: int
    offset: int
    is_finite: bool = False  # no input is NaN or infinite; False: not known
    program: ProgramKey | None = None  # what is run, if the executable takes any shape


class DropMeasurement(WorkerRequest[Acknowledged], frozen=True):
    """Drop the measurement that a call asked for; that call is never answered."""

    call: int


class DescribeProgram(ProgramRequest[ProgramDescription], frozen=True):
    """Describe the static graph of a program."""


class FindFacts(MeasurementRequest[DeviceFacts], frozen=True):
    """Find what planners may know of the device and a program's units."""


class FindKernels(MeasurementRequest[ProgramKernels], frozen=True):
    """Find the units of a program that more than one kernel can run."""


class MeasureStage(MeasurementRequest[StageLatency], frozen=True):
    """Measure one stage of a program."""

    stage: Stage
    threads: int | None = None  # how many it may use; None: all
    variant: str = ""  # kernel that its only unit runs on; "": the usual one
    hopeless_us: float | None = None  # a stage that takes longer need not be measured with care


class ComparePlans(MeasurementRequest[PlanMeasurements], frozen=True):
    """Measure whole models in turns, the first plan of ``program`` being the baseline."""

    fields: tuple[PlansToCompare, ...]  # of one program in several precisions, that one first
    samples: str = ""  # path of the inputs that errors are measured on; empty: seeded ones
    is_brief: bool = False  # a few runs of each, to tell who is hopeless
    is_timed: bool = True  # False: each runs once for its error, and has no latency


class MeasureParts(MeasurementRequest[PartMeasurements], frozen=True):
    """Measure stages of parts in engines, and check what they compute.

    Parts of a stage run side by side on a thread each; one alone has the threads that it names.
    """

    stages: tuple[tuple[EnginePart, ...], ...]


class Calibrate(MeasurementRequest[Calibrated], frozen=True):
    """Find how a program computes on 8-bit integers."""

    samples: str  # path of the inputs that ranges are taken from
    tolerance: float  # of outputs, relative to the largest element


class CompareThroughput(MeasurementRequest[ThroughputMeasurements], frozen=True):
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
    | Calibrated
    | ThroughputMeasurements
)

# What travels on the link.


class WorkerCall(Tagged, frozen=True):
    """A request, under a number that its answers name."""

    number: int
    request: AnyRequest


class WorkerAnswer(Tagged, frozen=True):
    """The reply to a call."""

    call: int
    reply: AnyReply


class WorkerProgress(Tagged, frozen=True):
    """How far a call is: the fraction done, in [0, 1]."""

    call: int
    fraction: float


class WorkerFailure(Tagged, frozen=True):
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
        text = str(error).encode(errors="replace").decode()  # names of files may be no Unicode
        return WorkerFailure(call, next(names), text, retry_after_s)

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


class DeviceIsLost(Tagged, frozen=True):
    """The worker ends by itself, as its device is of no use to it any more."""

    reason: str


# What travels on the control socket.


class AskStatus(Tagged, frozen=True):
    """Answer with a WorkerStatus; asked about twice a second."""


class StopRun(Tagged, frozen=True):
    """End the run of a call, or do not begin it."""

    call: int
    reason: str


class StopStep(Tagged, frozen=True):
    """End the work under way that is no run."""

    reason: str


class WorkerStatus(Tagged, frozen=True):
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
