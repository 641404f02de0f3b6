"""Stand-ins for what jobs ask for: an importer, a device, a planner, serving models.

The device's latencies come from a formula, so a plan is right or wrong by arithmetic.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import URL

from braid.compiler.imported_model import ImportedModel
from braid.compiler.options import ModelOptions
from braid.compiler.planner import MeasureStages
from braid.compiler.planner_messages import StageQuery
from braid.compiler.retries import RetryPauses
from braid.core.errors import InvalidRequest
from braid.core.graph import Operator, OpGraph, graph_to_json
from braid.core.measurement import (
    DeviceFacts,
    PlanMeasurement,
    StageLatency,
    StageOverheads,
    UnitProfile,
)
from braid.core.padding import PaddedAxis
from braid.core.plan import StreamPlan
from braid.core.program import PlansToCompare, ProgramKey, UnitKernels
from braid.core.quantisation import Quantisation
from braid.core.runtimes import ONNXRUNTIME
from braid.core.schedule import Schedule, Stage
from braid.core.tensor import TensorType
from braid.engine.importer.host.messages import OnProgress
from braid.engine.importer.host.report import (
    GRAPH_FILE,
    REPORT_FILE,
    WEIGHTS_FILE,
    BatchAxes,
    Report,
    Verified,
    file_digest,
    report_text,
)
from braid.engine.importer.host.request import Hints
from braid.engine.link.messages import (
    Calibrate,
    Calibrated,
    ComparePlans,
    CompareThroughput,
    DescribeProgram,
    FindFacts,
    FindKernels,
    MeasureStage,
    PlaceMeasurement,
    PlanMeasurements,
    ProgramDescription,
    ProgramKernels,
    ThroughputMeasurements,
)
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import Planned, plan, stages_to_measure
from braid.scheduler.portfolio import candidates
from braid.scheduler.signature import stage_signature
from braid.server.jobs.imports import MemoryBudget
from braid.server.jobs.runner import JobRunner
from braid.server.jobs.services import JobServices
from braid.server.store.records import ModelVersion, Registration
from braid.server.store.store import Store

#   a ──> b ──> d      b and c are independent
#    └──> c ──┘
EDGES = {"a": "x", "b": "a", "c": "a", "d": "bc"}


def template(batch: int | str = "batch", extent: int | str = 8) -> OpGraph:
    """The diamond; one kind a unit, so that each has a signature of its own."""
    spec = TensorType("FP32", (batch, extent))
    operators = tuple(
        Operator(unit, f"fake.{unit}", tuple(reads), (unit,)) for unit, reads in EDGES.items()
    )
    return OpGraph("diamond", {"x": spec}, {"y": "d"}, {}, operators, dict.fromkeys(EDGES, spec))


def write_artefact(
    folder: Path,
    sha256: str,
    graph: OpGraph,
    *,
    batched: bool = True,
    narrow_type: str = "",
    tried: Sequence[int] = (1,),
    samples: str = "",
    padding: tuple[PaddedAxis, ...] = (),
    weights: bytes = b"",
) -> None:
    """What the importer leaves behind, as far as the front end reads it."""
    folder.mkdir()
    (folder / GRAPH_FILE).write_text(json.dumps(graph_to_json(graph)))
    if weights:
        (folder / WEIGHTS_FILE).write_bytes(weights)
    report = Report(
        sha256=sha256,
        size_bytes=1,
        source="onnx",
        opset=17,
        batch=BatchAxes({"x": 0}, {"y": 0}) if batched else None,
        static_inputs=(),
        example_shapes={"x": (1, 8)},
        static_values={},
        warnings=(),
        verified=Verified("fake", tuple(tried), 0.0, 1e-4),
        files={path.name: file_digest(path) for path in folder.iterdir()},
        narrow_type=narrow_type,
        samples=samples,
        padding=padding,
    )
    (folder / REPORT_FILE).write_text(report_text(report))


class AtOnce(ThreadPoolExecutor):
    """Runs what is meant for threads where it is submitted, so that every run is the same."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done


async def a_moment() -> None:
    """Long enough for a watcher to see the present state."""
    await asyncio.sleep(0.001)


class FakeImporter:
    def __init__(self) -> None:
        self.imports = 0
        self.graph = template()
        self.batched = True
        self.narrow_type = ""
        self.padding: tuple[PaddedAxis, ...] = ()
        self.needs_samples = False  # takes no content that it makes up
        self.error: Exception | None = None
        self.samples: Path | None = None  # of the last import
        self.gate: asyncio.Event | None = None
        self.places = MemoryBudget(total_bytes=1, at_once=1)

    async def __call__(
        self, upload: Path, artefact: Path, on_progress: OnProgress, hints: Hints
    ) -> None:
        self.hints, samples = hints, hints.samples
        self.samples = samples
        async with self.places.reserve(1):
            await self._import(upload, artefact, on_progress, samples)

    async def _import(
        self, upload: Path, artefact: Path, on_progress: OnProgress, samples: Path | None
    ) -> None:
        self.imports += 1
        assert await asyncio.to_thread(upload.is_file)
        on_progress(0.5, "lowering")
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        write_artefact(
            artefact,
            upload.name,
            self.graph,
            batched=self.batched,
            narrow_type=self.narrow_type,
            tried=() if self.needs_samples and samples is None else (1,),
            samples=samples.name if samples else "",
            padding=self.padding,
        )


class FakeDevice:
    """Latency of a group: its units, of a stage: its longest group; times the batch size."""

    name = "cpu"
    software: Mapping[str, str] = {"torch": "fake"}

    def __init__(self) -> None:
        self.device_key = "fake-cpu"
        self.precisions: tuple[str, ...] = ("fp32", "tf32", "fp16")
        self.precision = ""  # of the latest static graph
        self.loads: list[str] = []
        self.kept: Counter[str] = Counter()
        self.wakes = 0
        self.measured: Counter[tuple[int, Stage]] = Counter()
        self.compared: list[list[StreamPlan]] = []
        self.side_by_side: list[PlaceMeasurement] = []
        self.kernel_us = {"usual": 100.0, "other": 110.0}
        self.kernels_measured: Counter[str] = Counter()
        self.before_measuring: Callable[[Stage], object] = lambda _: None
        self.before_comparing: Callable[[], Awaitable[None]] = a_moment
        self.before_loading: Callable[[], Awaitable[object]] = a_moment
        self.gate: asyncio.Event | None = None
        self.sequential = PlanMeasurement(100.0, 0.01, 10, (1.0,) * 9, 1e-6, 1e-6)
        self.sequential_us: Mapping[int, float] = {}  # by batch size, where it is another one
        self.on_other_kernels: PlanMeasurement | None = None  # sequential
        self.others = PlanMeasurement(90.0, 0.01, 10, (1.11,) * 9, 1e-6, 1e-6)
        self.runtimes: tuple[str, ...] = (ONNXRUNTIME,)
        self.narrow: dict[str, tuple[PlanMeasurement, PlanMeasurement]] = {}  # sequential, others
        self.in_runtimes: dict[tuple[str, str], PlanMeasurement] = {}  # by runtime and precision
        self.samples = ""  # that the latest comparison was given
        self.in_runtime = PlanMeasurement(None, problem="there is no session")
        self.measuring = 0
        self.quantisation = Quantisation({"x": (-1.0, 1.0)}, ("b",), "whole range", 1e-3, 1, 2)
        self.calibrated: list[tuple[ProgramKey, str, float]] = []
        self.calibration_error: Exception | None = None
        self.pause_s = 0.0
        self.fails_at = 0  # this batch size
        self.refusal: Exception | None = None  # to load models

    @property
    def bench(self) -> Any:
        return self

    def wake(self) -> None:
        self.wakes += 1

    @asynccontextmanager
    async def keeping(self, digest: str) -> AsyncIterator[None]:
        self.kept[digest] += 1
        yield
        self.kept[digest] -= 1

    async def load(self, digest: str, artefact: Path) -> None:
        assert self.kept[digest], "a job keeps what it loads"
        assert (artefact / "graph.json").is_file()
        await self.before_loading()
        if self.refusal is not None:
            raise self.refusal
        self.loads.append(digest)

    async def ask(self, request: Any, on_progress: Callable[[float], None] | None = None) -> Any:
        told = on_progress or (lambda _: None)
        match request:
            case DescribeProgram(program):
                return ProgramDescription(self.static_graph(program))
            case FindFacts():
                profiles = (UnitProfile(64.0, True),) * len(EDGES)
                return DeviceFacts(StageOverheads(1.0), profiles, threads=2)
            case FindKernels():
                return ProgramKernels((UnitKernels("ab", (0, 1), ("usual", "other")),))
            case MeasureStage(program, stage, variant=""):
                return await self.measure_stage(program, stage)
            case MeasureStage(variant=variant):
                self.kernels_measured[variant] += 1
                return StageLatency(self.kernel_us[variant], 0.01, 5)
            case ComparePlans(fields=fields, samples=samples):
                return PlanMeasurements(tuple(await self._compare(fields, samples, told)))
            case Calibrate(program, samples, tolerance):
                self.calibrated.append((program, samples, tolerance))
                told(0.5)
                if self.calibration_error is not None:
                    raise self.calibration_error
                return Calibrated(self.quantisation)
            case CompareThroughput():
                return ThroughputMeasurements(tuple(self.side_by_side))
        raise AssertionError(f"nobody asks for {request}")

    def static_graph(self, program: ProgramKey) -> OpGraph:
        self.precision = program.precision
        spec = program.specs["x"]
        assert spec.is_static
        if spec.shape[0] == self.fails_at:
            raise InvalidRequest("cannot run four")
        return replace(template(), inputs=program.specs, specs=dict.fromkeys(EDGES, spec))

    async def measure_stage(self, program: ProgramKey, stage: Stage) -> StageLatency:
        assert not self.measuring, "two measurements at once falsify each other"
        self.measuring += 1
        try:
            self.before_measuring(stage)
            if self.gate is not None:
                await self.gate.wait()
            await asyncio.sleep(self.pause_s)
            batch_size = program.specs["x"].shape[0]
            assert isinstance(batch_size, int)
            self.measured[batch_size, stage] += 1
            latency_us = 10.0 * batch_size * max(map(len, stage.groups))
            return StageLatency(latency_us, 0.01, 5)
        finally:
            self.measuring -= 1

    async def _compare(
        self, fields: Sequence[PlansToCompare], samples: str, on_progress: Callable[[float], None]
    ) -> list[PlanMeasurement]:
        await self.before_comparing()
        self.compared.append([plan for field in fields for plan in field.plans])
        self.samples = samples
        on_progress(0.5)
        return [measured for field in fields for measured in self._in_turns(field)]

    def _in_turns(self, field: PlansToCompare) -> list[PlanMeasurement]:
        """Measurements of one precision's plans, then of its runtimes."""
        precision = field.program.precision
        narrow = self.narrow.get(precision)
        first, others = narrow or (self.sequential, self.others)
        rows = field.program.specs["x"].shape[0]
        assert isinstance(rows, int)
        first = replace(first, latency_us=self.sequential_us.get(rows, first.latency_us))
        if field.program.choices and self.on_other_kernels is not None:
            first = self.on_other_kernels
        last = [self.in_runtimes.get((name, precision), self.in_runtime) for name in field.runtimes]
        return [first, *[others] * (len(field.plans) - 1), *last]


async def _all_at_once(measure: MeasureStages, queries: Sequence[StageQuery]) -> Sequence[float]:
    return await measure(queries)


class InProcessPlanner:
    """The real planner without its process."""

    def __init__(self) -> None:
        self.calls = 0
        self.error: Exception | None = None
        self.before_planning: Callable[[], Awaitable[None]] = a_moment
        self.asks = _all_at_once

    async def __call__(
        self, graph: OpGraph, options: PlannerSettings, facts: DeviceFacts, measure: MeasureStages
    ) -> list[Planned]:
        self.calls += 1
        stages = {stage_signature(graph, each): each for each in stages_to_measure(graph, options)}
        queries = [StageQuery(name, each) for name, each in stages.items()]
        latencies = await self.asks(measure, queries)
        await self.before_planning()
        if self.error is not None:
            raise self.error
        known = dict(zip(stages, latencies, strict=True))

        class Cost:
            def stage_latency_us(self, stage: Stage) -> float:
                known_us = known.get(stage_signature(graph, stage))
                return 10.0 * max(map(len, stage.groups)) if known_us is None else known_us

        if options.planner == "portfolio":
            return candidates(graph, Cost(), options)
        return [plan(graph, Cost(), options)]


class FakeServingModels:
    def __init__(self) -> None:
        self.known: dict[tuple[str, int], ModelVersion] = {}
        self.serving: set[tuple[str, int]] = set()
        self.on_devices: set[str] = set()
        self.plans: dict[tuple[str, int, int], Schedule] = {}
        self.swap_error: Exception | None = None
        self.not_restored: set[str] = set()  # names

    def served_version(self, name: str, version: int) -> object | None:
        return None  # nothing answers here

    def was_not_restored(self, model: ModelVersion) -> bool:
        return model.name in self.not_restored

    def scheduled_shapes(self, model: ModelVersion) -> tuple[str, ...]:
        return ()

    def register(self, model: ModelVersion) -> None:
        self.known[model.name, model.version] = model

    def replacing(self, model: ModelVersion) -> None:
        raise AssertionError("no job here replaces a version")

    def give_up(self, model: ModelVersion) -> bool:
        return False

    async def serve(self, model: ModelVersion, imported: ImportedModel, device: str) -> None:
        self.serving.add((model.name, model.version))
        self.not_restored.discard(model.name)
        self.on_devices.add(device)

    async def use_sequential(self, model: ModelVersion, device: str, schedule: Schedule) -> None:
        pass

    async def swap(self, model: ModelVersion, device: str, schedule: Schedule) -> None:
        if self.swap_error is not None:
            error, self.swap_error = self.swap_error, None
            raise error
        self.plans[model.name, model.version, schedule.key.batch_size] = schedule

    async def unload(self, model: ModelVersion) -> None:
        self.register(model)
        self.serving.discard((model.name, model.version))


class Observer:
    def __init__(self) -> None:
        self.jobs: dict[str, int] = {}
        self.measured = 0
        self.reused = 0
        self.refused = 0
        self.looked_up: Counter[bool] = Counter()
        self.chosen: list[tuple[int, bool]] = []

    def jobs_counted(self, by_state: Mapping[str, int]) -> None:
        self.jobs = {state: count for state, count in by_state.items() if count}

    def stage_measured(self, device: str, seconds: float) -> None:
        self.measured += 1

    def stages_reused(self, device: str, count: int) -> None:
        self.reused += count

    def schedule_looked_up(self, hit: bool) -> None:
        self.looked_up[hit] += 1

    def plans_refused(self, device: str, count: int) -> None:
        self.refused += count

    def schedule_chosen(self, model: ModelVersion, device: str, schedule: Schedule) -> None:
        self.chosen.append((schedule.key.batch_size, schedule.provenance.promoted))


class Server:
    """A store and a job runner over fakes; ``restarted`` is the same store after a stop."""

    def __init__(
        self, root: Path, database: URL | None = None, store_type: type[Store] = Store
    ) -> None:
        self.store = store_type.open(root, database=database)
        self.importer = FakeImporter()
        self.device = FakeDevice()
        self.devices = [self.device]
        self.planner = InProcessPlanner()
        self.models = FakeServingModels()
        self.observer = Observer()
        self.services = JobServices(
            store=self.store,
            import_model=self.importer,
            devices=self.devices,
            planner=self.planner,
            models=self.models,
            observer=self.observer,
            on_schedule=[self.observer.schedule_chosen],
            tolerance=1e-4,
            retry_pauses=RetryPauses((0.25, 0.5, 1.0), self._sleep),
        )
        self.sleeping: Callable[[], Awaitable[object]] = a_moment
        self.slept_s: list[float] = []
        self.runner = JobRunner(self.services)

    async def _sleep(self, seconds: float) -> None:
        """Time that jobs wait before they try again; as long as ``sleeping`` is."""
        self.slept_s.append(seconds)
        await self.sleeping()

    async def register(
        self,
        name: str = "lenet",
        content: bytes = b"a model",
        sizes: Sequence[int] = (1,),
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        planner: PlannerSettings | None = None,
        precision: str = "fp32",
        accepted_error: float | None = None,
    ) -> Registration:
        options = ModelOptions(
            tuple(sizes), planner or PlannerSettings("ios"), shapes or {}, precision, accepted_error
        )
        async with self.store.receive(1000) as upload:
            await upload.write(content)
            received = await upload.finish(hashlib.sha256(content).hexdigest())
            return await self.runner.register(name, received, options)

    async def restarted(self) -> Server:
        await self.stop()
        again = Server(self.store.folder.root)
        await again.runner.start()
        return again

    async def stop(self) -> None:
        await self.runner.stop()
        self.store.close()
