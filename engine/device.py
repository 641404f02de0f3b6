"""Interface between a device worker and its device; the rest of the worker is the same for all.

    Worker ──> RequestHandlers ─> Backend.bind, prepare ──> Prepared.run      (models, requests)
           └─> Measurements ────> Backend.overheads, measure, contender            (planning)

    engine/cpu/backend.py     a pool of pinned threads
    engine/cuda/backend.py   CUDA streams, captured into graphs

A backend is made and used by one thread. Inputs and outputs are
arrays, in the CPU's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from braid.core.device_state import DeviceState
from braid.core.errors import BraidError, PreconditionFailed
from braid.core.graph import Operator, OpGraph
from braid.core.measurement import StageLatency, StageOverheads, UnitProfile
from braid.core.plan import StreamPlan
from braid.core.precision import FP32
from braid.core.runtimes import RUNTIMES, runtimes_in
from braid.core.schedule import USUAL_KERNELS, Strategy
from braid.engine.program.engines import Engine, EnginePlace, Whole
from braid.engine.program.kernel import PackedWeights, Values
from braid.engine.program.model_file import opened_file
from braid.engine.program.program import NO_PARTS, BoundUnit, OpenedParts, Program
from braid.engine.runtime.arrays import Arrays
from braid.engine.runtime.yielding import YieldToRequests, no_pause
from braid.engine.timing.contenders import TimedContender

MakeInputs = Callable[[], Arrays]

UnitTimes = Callable[[YieldToRequests | None], Sequence[float]]
"""Runs a plan; returns the microseconds of each launch, which pauses disturb."""


class PendingRun(Protocol):
    """A run that was begun."""

    def is_done(self) -> bool:
        """Whether ``finish`` would return without waiting."""

    def finish(self) -> Arrays:
        """Wait for the outputs; called once, in the order in which runs were begun."""


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that was over when it was begun."""

    outputs: Arrays

    def is_done(self) -> bool:
        return True

    def finish(self) -> Arrays:
        return self.outputs


RUNS_UNDERWAY = 2  # of one plan: one computes, the next one's inputs travel


class Prepared(Protocol):
    """A program under one plan, ready to run on its device."""

    @property
    def activation_bytes(self) -> int | None:
        """Memory that a run takes beside the weights; None before it is known."""

    def run(self, inputs: Arrays, pause: YieldToRequests | None = None) -> Arrays:
        """Outputs by name; ``pause`` is called now and then in a run that may take long."""

    def begin(self, inputs: Arrays, outputs: Arrays | None = None) -> PendingRun:
        """As ``run``, but where the device works by itself, do not wait for it.

        At most ``RUNS_UNDERWAY``; no other plan runs meanwhile. With ``outputs`` (row-major), the
        run fills them, and finishes with them.
        """

    def release(self) -> None:
        """Free what the device holds for it; it is not used again."""


@dataclass(frozen=True, slots=True)
class AskedStage:
    """Request to measure one stage."""

    groups: Sequence[Sequence[int]]  # in order within a group, side by side across groups
    threads: int | None = None  # how many it may use; None: all of the device
    strategy: Strategy = "concurrent"
    hopeless_us: float | None = None  # above it one sample is enough
    delegated: Sequence[BoundUnit | None] = ()  # an engine's, in place of the units of a group


class DevicePart(Protocol):
    """Part of a device's threads, which does one work at a time beside the device's other parts."""

    @property
    def span(self) -> range:
        """Threads of the device that belong to this part."""

    @property
    def backend(self) -> Backend:
        """The part as a device of its own; what it prepares runs in the work of ``start``."""

    def start(self, work: Callable[[], None]) -> None:
        """Begin ``work`` on the place's own leading thread; waits for the work before it."""

    def join(self) -> None:
        """Wait for the work that was begun last, and raise what it raised."""


class StageTimer(Protocol):
    """Measures stages of one program at a time."""

    def measure(
        self, program: Program, inputs: MakeInputs, stage: AskedStage, pause: YieldToRequests
    ) -> Generator[None, None, StageLatency]:
        """Latency of one stage; what is kept for the next one goes with ``forget``."""

    def forget(self) -> None:
        """Free what was kept from one measurement to the next."""


class Backend(StageTimer, Protocol):
    """One device. Long work calls ``pause`` between its steps; measurements yield instead."""

    @property
    def threads(self) -> int:
        """Most groups that can run side by side."""

    @property
    def precisions(self) -> Sequence[str]:
        """Precisions of braid.core.precision that models can be computed in here."""

    @property
    def computes_on_integers(self) -> bool:
        """Whether there are kernels for quantised models; without them those run in FP32."""

    def device_key(self) -> str:
        """Canonical text of all that a latency measured here depends on."""

    def state(self, pause: YieldToRequests = no_pause) -> DeviceState:
        """What a latency depends on now beside the key; takes well under a second."""

    def software(self) -> dict[str, str]: ...

    def reserved_bytes(self) -> int | None:
        """Bytes of the device's own memory that this process has reserved; None: it has none."""

    def bind(
        self,
        graph: OpGraph,
        constants: Values,
        packed: PackedWeights,
        pause: YieldToRequests,
        precision: str = FP32,
        choices: Mapping[str, str] = USUAL_KERNELS,
    ) -> Program:
        """Choose a kernel for each unit of a static graph, on data of ``precision`` already.

        ``packed`` is shared by a model; ``choices`` are kernel signatures with the variant that was
        measured to be fastest.
        """

    def prepare(
        self,
        program: Program,
        plan: StreamPlan,
        pause: YieldToRequests = no_pause,
        opened: OpenedParts = NO_PARTS,
    ) -> Prepared:
        """Make a verified plan ready to run, whose parts in engines are all in ``opened``.

        Raises ``DeviceOutOfMemory``, or ``PreconditionFailed`` if the device runs no such parts.
        """

    def places(self, count: int) -> Sequence[DevicePart]:
        """``count`` places of equally many threads; none if this device cannot be divided so."""

    def interpret(self, program: Program, inputs: Arrays, pause: YieldToRequests) -> Arrays:
        """Outputs by the plain operators in the order of the graph: slow, and right."""

    @property
    def runtimes(self) -> Sequence[str]:
        """Engines of braid.core.runtimes that can run whole models here."""

    def engine(self, runtime: str) -> Engine: ...

    def engine_place(self, callers: int = 1, threads: int = 0) -> EnginePlace:
        """The device, or ``threads`` from the first one on; ``callers`` threads run it at once."""

    def profile(self, unit: Operator, graph: OpGraph) -> UnitProfile:
        """Use of the device by a unit, estimated from its shapes."""

    def overheads(self) -> Generator[None, None, StageOverheads]:
        """Latency of a stage beside its units' own work, measured."""

    def contender(self, prepared: Prepared, outputs: Arrays | None) -> TimedContender:
        """A plan in a comparison; ``outputs`` as for ``Prepared.begin``."""

    def whole_contender(self, whole: Whole, outputs: Arrays | None) -> TimedContender:
        """A model in another runtime in a comparison; ``outputs`` None: it makes its own."""

    def fault(self, error: Exception) -> BraidError | None:
        """The Braid error behind a library's, or None; DeviceLost: this process must end."""

    def close(self) -> None: ...


def open_whole(
    backend: Backend,
    runtime: str,
    artefact: Path,
    digest: str,
    callers: int = 1,
    precision: str = FP32,
    *,
    any_shape: bool = False,
) -> Whole:
    """Open the model file that an artefact keeps, whose SHA-256 is ``digest``, in a runtime.

    Raises ``PreconditionFailed`` if there is none or the engine refuses it, ``InvalidArtefact`` if
    it was changed.
    """
    if not runtimes_in(precision, [runtime]):
        raise PreconditionFailed(f"{RUNTIMES[runtime]} does not compute in {precision}")
    engine = backend.engine(runtime)
    with opened_file(artefact, digest) as path:
        place = backend.engine_place(callers)
        return engine.compile(path, place, precision, any_shape=any_shape)
