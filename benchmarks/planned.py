"""A network's plans on this device, as a registration finds them, for benchmarks.

ONNX file ──import──> artefact ──braid.compiler.search──> every candidate
                                        └──comparison──> what would serve
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import TypeVar

from braid.compiler.choose_plan import PlanChoice, choose_plan
from braid.compiler.imported_model import read_imported
from braid.compiler.options import ModelOptions
from braid.compiler.planner import PlannerProcess
from braid.compiler.result_files import ResultFiles
from braid.compiler.results import Cache
from braid.compiler.search import FoundPlans, search_plans
from braid.compiler.work import CompileOptions, Work
from braid.core.plan import StreamPlan, plan_to_json
from braid.core.precision import FP32
from braid.engine.importer.host.launch import import_model
from braid.engine.importer.host.report import read_report
from braid.engine.importer.host.request import ImportLimits
from braid.engine.link.messages import ComparePlans, FindKernels, MeasureStage, ProgramRequest
from braid.engine.link.options import WorkerOptions
from braid.engine.link.worker_process import OnProgress
from braid.scheduler.options import PlannerSettings
from braid.server.devices.device import Device

R = TypeVar("R")

TOLERANCE = 1e-4

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Scheduling:
    """What it took to find the plans of one (model, batch)."""

    kernels_s: float  # choosing kernels
    planning_s: float  # search and measurement of stages
    stages_measured: int
    contest_s: float  # whole plans against each other
    requests_s: Mapping[str, float] = field(default_factory=dict)  # of the device, by their names

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
        await import_model(model, artefact, ImportLimits(), lambda *_: None)
    return artefact


def cpu_device(threads: int) -> Device:
    """Return a device of this process's cores with the usual room, not started."""
    return Device("cpu", WorkerOptions(threads, _GIB, 2 * _GIB, 7))


async def find_plans(
    artefact: Path,
    batch: int,
    threads: int,
    folder: Path,
    options: PlannerSettings,
    *,
    precision: str = FP32,
) -> SearchedPlans:
    """Plan one network at one batch size as ``plans_on`` does, on the CPU.

    What is measured is kept beside ``folder``.
    """
    device, results = cpu_device(threads), ResultFiles(folder.parent / "store")
    try:
        await device.start()
        async with device.keeping(read_report(artefact).sha256):
            return await plans_on(
                *(device, artefact, batch, folder, options),
                results=results,
                precision=precision,
            )
    finally:
        await device.close()


async def plans_on(
    device: Device,
    artefact: Path,
    batch: int,
    folder: Path,
    options: PlannerSettings,
    *,
    results: ResultFiles,
    others: bool = True,
    precision: str = FP32,
) -> SearchedPlans:
    """Find and compare all candidates for one network at one batch size.

    Args:
        device: started; the caller keeps the model there.
        artefact: the model as imported.
        batch: size of dimension 0.
        folder: where the plans are written.
        options: of the planner.
        results: for what is measured of kernels and stages.
        others: whether other runtimes take part in the comparison.
        precision: in which the plans compute.
    """
    digest = read_report(artefact).sha256
    await device.load(digest, artefact)
    asked = ModelOptions((batch,), options, precision=precision)
    imported = await asyncio.to_thread(read_imported, digest, asked, artefact)
    timed = TimedDevice(device)
    cache = Cache(results, asyncio.to_thread, device.device_key)
    how = CompileOptions(PlannerProcess(8 * _GIB, 1800.0), TOLERANCE)
    left_out = {} if others else dict.fromkeys(device.runtimes, "it is not asked for")
    work = Work(imported, timed, batch, how, cache, lambda _: None, left_out=left_out)
    began = monotonic()
    found = await search_plans(work)
    request = ComparePlans(found.kernels.program, (found.to_compare,))
    measurements = (await work.retry(lambda: timed.ask(request))).plans
    choice = choose_plan(
        found.plans, measurements, found.tolerance, choose=True, precision=precision
    )
    kernels_s, contest_s = timed.seconds[_KERNELS], timed.seconds[_CONTEST]
    planning_s = monotonic() - began - kernels_s - contest_s
    requests_s = {name: round(seconds, 3) for name, seconds in timed.seconds.items()}
    scheduling = Scheduling(kernels_s, planning_s, found.stages_measured, contest_s, requests_s)
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    return _searched(found, choice, folder, scheduling)


_KERNELS, _CONTEST = "kernels", "contest"


class TimedDevice:
    """A device that keeps count of the seconds that requests take, by what they are for."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.name, self.device_key = device.name, device.device_key
        self.precisions, self.runtimes = device.precisions, device.runtimes
        self.software = device.software
        self.seconds: defaultdict[str, float] = defaultdict(float)

    async def ask(self, request: ProgramRequest[R], on_progress: OnProgress | None = None) -> R:
        began = monotonic()
        try:
            return await self._device.ask(request, on_progress)
        finally:
            self.seconds[_purpose(request)] += monotonic() - began


def _purpose(request: object) -> str:
    if isinstance(request, ComparePlans):
        return _KERNELS if request.is_brief else _CONTEST
    is_of_kernels = isinstance(request, MeasureStage) and request.variant
    return _KERNELS if is_of_kernels or isinstance(request, FindKernels) else type(request).__name__


def _searched(
    found: FoundPlans, choice: PlanChoice, folder: Path, scheduling: Scheduling
) -> SearchedPlans:
    names = [contender.name for contender in choice.contenders]
    plans = {
        name: _written(folder / f"{number}.json", model.plan)
        for number, (name, model) in enumerate(zip(names, found.plans.planned, strict=False))
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
        choices=dict(found.kernels.program.choices),
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
