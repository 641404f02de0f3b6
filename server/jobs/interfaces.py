"""What a registration job asks of the rest of the server, as small Protocols.

    registration ──> ImportModel    braid.server.jobs.imports
                 ──> ServingDevice  braid.server.devices.device: where models serve
                 ──> Measurer       braid.server.devices.measuring.bench: where they are measured
                 ──> Planner        braid.server.jobs.planner.driver
                 ──> PlanTarget     braid.server.models.serving_models: what answers requests
                 ──> JobObserver, OnSchedule   braid.server.observability

Any call may raise braid.core.errors. ``Unavailable`` means: again in a moment (a worker restarts).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from braid.core.graph import OpGraph
from braid.core.measurement import DeviceFacts, PlanMeasurement, StageLatency
from braid.core.program import PlansToCompare, PlanToRun, ProgramKey, UnitKernels
from braid.core.quantisation import Quantisation
from braid.core.schedule import Schedule, Stage
from braid.engine.importer.host.messages import OnProgress
from braid.engine.link.messages import PlaceMeasurement
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import Planned
from braid.server.jobs.imported_model import ImportedModel
from braid.server.store.records import ModelVersion

Ask = Literal["latency", "again", "work"]
"""A stage's latency; a fresh measurement of it; its latency on one thread."""


@dataclass(frozen=True, slots=True)
class StageQuery:
    """A stage whose latency a planner asks for."""

    signature: str  # equal for stages that are the same to the device
    stage: Stage
    ask: Ask = "latency"


MeasureStages = Callable[[Sequence[StageQuery]], Awaitable[Sequence[float]]]
"""Answers with the latencies in microseconds, in the order of the queries."""


ExampleShapes = Mapping[str, tuple[int, ...]] | None
"""Shapes to check a model at, by input; None: those that its file suggests."""

ImportModel = Callable[[Path, Path, OnProgress, ExampleShapes], Awaitable[None]]
"""Imports an uploaded file into an artefact folder, which appears whole or not at all."""

CheckImported = Callable[[ImportedModel], None]
"""Raises BraidError if an imported model is not what was asked for; it does not serve then."""


class Measurer(Protocol):
    """Measures models on one device as they will run. Cancelling a call stops the measurement."""

    def wake(self) -> None:
        """Prepare for calls that come soon."""

    async def static_graph(self, program: ProgramKey) -> OpGraph:
        """Static graph of a program; its operators are the schedule units."""

    async def facts(self, program: ProgramKey) -> DeviceFacts:
        """Facts of a program's units besides latencies."""

    async def kernels(self, program: ProgramKey) -> Sequence[UnitKernels]:
        """Units of a program that more than one kernel can run."""

    async def measure_kernel(
        self, program: ProgramKey, unit: int, variant: str, hopeless_us: float
    ) -> StageLatency:
        """Latency of one unit on one kernel; roughly if above ``hopeless_us`` microseconds."""

    async def measure_stage(
        self, program: ProgramKey, stage: Stage, threads: int | None = None
    ) -> StageLatency:
        """Latency of one stage of a program, on some or all (None) threads."""

    async def compare(
        self,
        fields: Sequence[PlansToCompare],
        *,
        on_progress: Callable[[float], None],
        samples: str = "",
        is_brief: bool = False,
    ) -> Sequence[PlanMeasurement]:
        """Measure plans of a program in turns, the first of all being the baseline.

        Args:
            fields: the program in each precision that takes part, with its plans and runtimes;
                measurements come in this order, those of a field's runtimes after its plans.
                What errs by more than its field's tolerance is not timed, but for the baseline.
            on_progress: told the part that is done, 0 to 1.
            samples: path of the inputs that errors are measured on; empty: seeded ones.
            is_brief: run each a few times only, to tell who is hopeless.
        """

    async def calibrate(
        self,
        program: ProgramKey,
        *,
        samples: str,
        tolerance: float,
        on_progress: Callable[[float], None],
    ) -> Quantisation:
        """Find how a program computes on 8-bit integers: ranges, and units that stay wide.

        Args:
            program: in FP32.
            samples: path of the inputs that ranges are taken from.
            tolerance: of outputs; units stay wide until they err by no more, if that helps.
            on_progress: told the part that is done, 0 to 1.
        """

    async def throughput(
        self, to_run: PlanToRun, *, runtimes: Sequence[str], tolerance: float
    ) -> Sequence[PlaceMeasurement]:
        """Measure runs side by side on parts of the threads, beside runs of a plan on all of them.

        None if the device cannot be divided. The whole model runs in ``runtimes`` too.
        """


class ServingDevice(Protocol):
    """A device, as far as jobs use it."""

    name: str

    @property
    def bench(self) -> Measurer:
        """Measurer of this device."""

    @property
    def device_key(self) -> str:
        """Text that names what a measurement on this device depends on."""

    @property
    def precisions(self) -> Sequence[str]:
        """Precisions that models can be computed in; known once the worker was up."""

    @property
    def runtimes(self) -> Sequence[str]:
        """Other runtimes that can run whole models there; known once the worker was up."""

    @property
    def software(self) -> Mapping[str, str]:
        """Versions of the libraries of the worker, by name."""

    def keeping(self, digest: str) -> AbstractAsyncContextManager[None]:
        """Keep a model loaded while the context is open, even if its other users end."""

    async def load(self, digest: str, artefact: Path) -> None:
        """Load an artefact, which the caller keeps; does nothing if it is loaded."""


Planner = Callable[
    [OpGraph, PlannerSettings, DeviceFacts, MeasureStages], Awaitable[Sequence[Planned]]
]
"""Plans one static graph; the portfolio returns all different plans.

Asks for each latency at most once, but for fresh ones. Raises BraidError if the graph is too big
for the search, or the planner failed.
"""


class PlanTarget(Protocol):
    """Models that answer requests."""

    def register(self, model: ModelVersion) -> None:
        """Record a version, or its new state."""

    def was_not_restored(self, model: ModelVersion) -> bool:
        """True if a version served before the server's restart and could not be restored."""

    def replacing(self, model: ModelVersion) -> None:
        """Record what will take the place of a version that serves, once it serves itself."""

    def give_up(self, model: ModelVersion) -> bool:
        """Forget what was to take a version's place; returns bool: it has not done so."""

    async def serve(self, imported: ImportedModel, device: str) -> None:
        """Let a model that is loaded on a device answer there, with its sequential plan.

        Does nothing if it does already. Takes the place of other bytes of the same version.
        """

    async def swap(self, model: ModelVersion, device: str, schedule: Schedule) -> None:
        """Let batches formed from now on, on a device, run ``schedule.plan``.

        They are formed by the latency that was measured of it.

        Raises:
            InvalidArtefact: the plan does not fit the model; the old plan stays.
        """

    def expect_sequential(self, model: ModelVersion, device: str, schedule: Schedule) -> None:
        """Form batches by the latency of the sequential plan, of a schedule not promoted."""

    async def unload(self, model: ModelVersion) -> None:
        """End the replicas of a version, and record its new state."""


class JobObserver(Protocol):
    """Counts of what jobs do."""

    def jobs_counted(self, by_state: Mapping[str, int]) -> None:
        """Take the number of jobs in each state, which has changed."""

    def stage_measured(self, device: str, seconds: float) -> None:
        """Count a stage that was measured, and the seconds it took."""

    def stages_reused(self, device: str, count: int) -> None:
        """Count stage latencies that were found in the store."""

    def schedule_looked_up(self, hit: bool) -> None:
        """Count one look-up of a stored schedule, and whether it was found."""

    def plans_refused(self, device: str, count: int) -> None:
        """Count plans that were refused because their outputs were wrong."""


OnSchedule = Callable[[ModelVersion, str, Schedule], None]
"""Takes a schedule that was found or made for a model on a device; promoted, it serves."""
