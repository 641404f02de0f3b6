"""A network's plans on this device, as a server would find them, for ``benchmarks.engine``.

ONNX file ──import──> artefact ──device worker, planner process──> plan of each planner
                                        └──comparison──> what the portfolio would serve
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import monotonic

from braid.compiler.cache import Cache
from braid.compiler.choose_plan import ComparedPlans, PlanChoice, choose_plan
from braid.compiler.device import measure as measure_stage
from braid.compiler.kernels import choose_kernels
from braid.compiler.planner import PlannerProcess
from braid.compiler.planner_messages import StageQuery
from braid.compiler.result_files import ResultFiles
from braid.compiler.retries import RetryPauses, RetryWhileRestarting
from braid.core.plan import StreamPlan, plan_to_json
from braid.core.precision import FP32, TOLERANCES, allowed_in
from braid.core.program import PlansToCompare, ProgramKey, static_content
from braid.core.runtimes import runtimes_in
from braid.core.tensor import TensorType
from braid.engine.importer.host.launch import import_model
from braid.engine.importer.host.report import read_graph, read_report
from braid.engine.importer.host.request import ImportLimits
from braid.engine.link.messages import ComparePlans, DescribeProgram, FindFacts, MeasureStage
from braid.engine.link.options import WorkerOptions
from braid.scheduler.options import PlannerSettings
from braid.server.devices.device import Device

TOLERANCE = 1e-4
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Scheduling:
    """What it took to find the plans of one (model, batch)."""

    kernels_s: float  # choosing kernels
    planning_s: float  # search and measurement of stages
    stages_measured: int
    contest_s: float  # whole plans against each other

    @property
    def total_s(self) -> float:
        """From the graph to the plan that serves."""
        return self.kernels_s + self.planning_s + self.contest_s


@dataclass(frozen=True, slots=True)
class SearchedPlans:
    """Plans that a search offers, as files by planner, and how they compared."""

    plans: dict[str, Path]
    portfolio: str  # which contender of the comparison it serves
    own: str  # the best plan of our own
    errors: dict[str, float]  # of each, relative to the largest output
    also: dict[str, tuple[str, ...]]  # other planners that found the same plan
    refused: dict[str, str]  # plans that may not serve, and why
    scheduling: Scheduling
    choices: Mapping[str, str]  # kernel signature -> variant, where it is not the usual one


async def imported(model: Path, artefact: Path) -> Path:
    """The artefact of an ONNX file, made unless it is there."""
    if not await asyncio.to_thread(artefact.exists):
        await import_model(model, artefact, ImportLimits(), lambda *_: None, {})
    return artefact


async def find_plans(
    artefact: Path,
    batch: int,
    threads: int,
    folder: Path,
    options: PlannerSettings,
    *,
    precision: str = FP32,
) -> SearchedPlans:
    """Plan one network at one batch size with every planner of the portfolio, on the CPU.

    Kernels are chosen as a registration does; their latencies are kept beside ``folder``.
    """
    device = Device("cpu", WorkerOptions(threads, _GIB, 2 * _GIB, 7))
    results = ResultFiles(folder.parent / "store")
    try:
        await device.start()
        async with device.keeping(read_report(artefact).sha256):
            wanted = partial(plans_on, results=results, precision=precision)
            return await wanted(device, artefact, batch, folder, options)
    finally:
        await device.close()


async def plans_on(
    device: Device,
    artefact: Path,
    batch: int,
    folder: Path,
    options: PlannerSettings,
    *,
    results: ResultFiles | None = None,
    others: bool = True,
    precision: str = FP32,
) -> SearchedPlans:
    """Plan one network at one batch size with every planner of the portfolio.

    Args:
        device: started; the caller keeps the model there.
        artefact: the model as imported.
        batch: size of dimension 0.
        folder: where the plans are written.
        options: of the planner.
        results: for what is known of kernels; without them the usual kernels run.
        others: whether other runtimes take part in the comparison.
        precision: in which the plans compute.
    """
    report = read_report(artefact)
    digest = report.sha256
    await device.load(digest, artefact)
    template = read_graph(artefact, report)
    inputs = {
        name: TensorType(spec.dtype, (batch, *spec.shape[1:]))
        for name, spec in template.inputs.items()
    }
    static = static_content(report.static_values, template.inputs)
    program = ProgramKey(digest, tuple(inputs.items()), static, precision)
    graph = (await device.ask(DescribeProgram(program))).graph
    tolerance = allowed_in(TOLERANCES.get(precision, TOLERANCE), graph)
    state, measured = (await device.find_state()).name, 0

    async def measure(queries: Sequence[StageQuery]) -> list[float]:
        nonlocal measured
        measured += sum(query.ask != "work" for query in queries)
        return [await _latency_us(device, program, query) for query in queries]

    began = monotonic()
    if results is not None:
        retry = RetryWhileRestarting(RetryPauses())
        cache = Cache(results, asyncio.to_thread, device.device_key).in_state(state)
        chosen = await choose_kernels(graph, program, device, cache, retry)
        program = chosen.program
    chose = monotonic()
    planner = PlannerProcess(8 * _GIB, 1800.0)
    planned = await planner(graph, options, await device.ask(FindFacts(program)), measure)
    searched = monotonic()
    runtimes = runtimes_in(precision, device.runtimes) if others else ()
    field = ComparedPlans.of(planned, len(graph.operators), runtimes)
    asked = PlansToCompare(program, tuple(field.plans), runtimes, tolerance)
    measurements = (await device.ask(ComparePlans(program, (asked,)))).plans
    scheduling = Scheduling(chose - began, searched - chose, measured, monotonic() - searched)
    choice = choose_plan(field, measurements, tolerance, choose=True, precision=precision)
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    return _searched(field, choice, folder, scheduling, dict(program.choices))


async def _latency_us(device: Device, program: ProgramKey, query: StageQuery) -> float:
    threads = 1 if query.ask == "work" else None
    return (await measure_stage(device, MeasureStage(program, query.stage, threads))).latency_us


def _searched(
    field: ComparedPlans,
    choice: PlanChoice,
    folder: Path,
    scheduling: Scheduling,
    choices: Mapping[str, str],
) -> SearchedPlans:
    names = [contender.name for contender in choice.contenders]
    plans = {
        name: _written(folder / f"{number}.json", model.plan)
        for number, (name, model) in enumerate(zip(names, field.planned, strict=False))
    }
    return SearchedPlans(
        plans=plans,
        portfolio=names[choice.chosen],
        own=names[choice.fallback],
        errors={
            contender.name: contender.max_rel_error
            for contender in choice.contenders
            if contender.max_rel_error is not None
        },
        also={contender.name: contender.also for contender in choice.contenders},
        refused={
            contender.name: contender.remark for contender in choice.contenders if contender.remark
        },
        scheduling=scheduling,
        choices=choices,
    )


def _written(path: Path, plan: StreamPlan) -> Path:
    path.write_text(json.dumps(plan_to_json(plan)))
    return path


_FILE = "found.json"


def keep(searched: SearchedPlans, folder: Path) -> None:
    document = {
        **asdict(searched),
        "plans": {name: path.name for name, path in searched.plans.items()},
    }
    (folder / _FILE).write_text(json.dumps(document, indent=1))


def kept(folder: Path) -> SearchedPlans | None:
    if not (folder / _FILE).exists():
        return None
    document = json.loads((folder / _FILE).read_text())
    document["plans"] = {name: folder / file for name, file in document["plans"].items()}
    document["also"] = {name: tuple(others) for name, others in document["also"].items()}
    return SearchedPlans(**{**document, "scheduling": Scheduling(**document["scheduling"])})
