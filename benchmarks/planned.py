"""A network's plans on this device, as a server would find them, for ``benchmarks.engine``.

ONNX file ──import──> artefact ──device worker, planner process──> plan of each planner
                                        └──contest──> what the portfolio would serve
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from core.plan import StreamPlan, plan_to_json
from core.tensor import TensorSpec
from engine.importer.launch import import_model
from engine.importer.limits import ImportLimits
from engine.importer.report import file_digest, read_graph
from engine.worker.options import WorkerOptions
from scheduler.options import PlannerOptions
from server.device import Device
from server.jobs.planner_driver import PlannerProcess
from server.jobs.ports import StageQuery
from server.jobs.verdict import Field, Verdict, judge

TOLERANCE = 1e-4
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Found:
    """Plan files by the planners' names; None is ONNX Runtime in the worker."""

    plans: dict[str, Path]
    portfolio: str  # which contender of the contest it serves
    own: str  # the best plan of our own
    errors: dict[str, float]  # of each, relative to the largest output


async def imported(model: Path, artefact: Path) -> Path:
    """The artefact of an ONNX file, made unless it is there."""
    if not await asyncio.to_thread(artefact.exists):
        await import_model(model, artefact, ImportLimits(), lambda *_: None, {})
    return artefact


async def find_plans(
    artefact: Path, model: Path, batch: int, threads: int, folder: Path, options: PlannerOptions
) -> Found:
    """Plan one network at one batch size with every planner of the portfolio."""
    device = Device("cpu", WorkerOptions(threads, _GIB, 2 * _GIB, 7, keep_spare=False))
    await device.start()
    try:
        digest = file_digest(model)
        await device.load(digest, artefact)
        template = read_graph(artefact)
        inputs = {
            name: TensorSpec(spec.dtype, (batch, *spec.shape[1:]))
            for name, spec in template.inputs.items()
        }
        graph = await device.static_graph(digest, batch, inputs)

        async def measure(queries: Sequence[StageQuery]) -> list[float]:
            return [await _latency_us(device, digest, batch, query) for query in queries]

        planner = PlannerProcess(8 * _GIB, 1800.0)
        planned = await planner(graph, options, await device.facts(digest, batch), measure)
        field = Field.of(planned, len(graph.operators), onnxruntime=True)
        showings = await device.contest(
            digest,
            batch,
            field.plans,
            onnxruntime=True,
            tolerance=TOLERANCE,
            on_progress=lambda _: None,
        )
    finally:
        await device.close()
    verdict = judge(field, showings, TOLERANCE, choose=True)
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    return _found(field, verdict, folder)


async def _latency_us(device: Device, digest: str, batch: int, query: StageQuery) -> float:
    threads = 1 if query.ask == "work" else None
    return (await device.measure_stage(digest, batch, query.stage, threads)).latency_us


def _found(field: Field, verdict: Verdict, folder: Path) -> Found:
    names = [contender.name for contender in verdict.contenders]
    plans = {
        name: _written(folder / f"{number}.json", model.plan)
        for number, (name, model) in enumerate(zip(names, field.planned, strict=False))
    }
    return Found(
        plans=plans,
        portfolio=names[verdict.chosen],
        own=names[verdict.fallback],
        errors={
            contender.name: contender.max_rel_error
            for contender in verdict.contenders
            if contender.max_rel_error is not None
        },
    )


def _written(path: Path, plan: StreamPlan) -> Path:
    path.write_text(json.dumps(plan_to_json(plan)))
    return path
