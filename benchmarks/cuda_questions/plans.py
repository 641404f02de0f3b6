"""Questions 4 and 7: sums of stages against whole graphs; memory by the rule of release."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.cuda.library import artefact_of
from benchmarks.cuda_questions.answers import Figure, Row
from benchmarks.networks.registry import NETWORKS, inputs_of
from braid.core.program import ProgramKey
from braid.core.schedule import Stage
from braid.engine.cuda.backend import CudaBackend
from braid.engine.cuda.graphs.calls import StreamCall, plan_calls
from braid.engine.cuda.graphs.commands import lower, order_calls
from braid.engine.cuda.graphs.issue import issue
from braid.engine.cuda.graphs.prepare import capturing
from braid.engine.cuda.on_gpu import OnGpu
from braid.engine.device import AskedStage
from braid.engine.importer.host.report import read_report
from braid.engine.ops.dtypes import spec_of
from braid.engine.program.kernel import Kernel
from braid.engine.program.program import BoundUnit, Program
from braid.engine.runtime.yielding import no_pause
from braid.engine.worker.models import ModelTable, seeded_inputs
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import Planned, plan

PLANNERS = ("sequential", "greedy", "rammer")
ROUNDS = 3
RUNS = 11


@dataclass(slots=True)
class StageCosts:
    """The device's own latencies, each stage measured once."""

    backend: CudaBackend
    program: Program

    def stage_latency_us(self, stage: Stage) -> float:
        """Measured now, to the end."""
        asked = AskedStage(stage.groups, None, stage.strategy)
        inputs = partial(seeded_inputs, self.program.graph, {}, 0)
        task = self.backend.measure(self.program, inputs, asked, no_pause)
        while True:
            try:
                next(task)
            except StopIteration as end:
                return float(end.value.latency_us)


def program_of(backend: CudaBackend, network: str, folder: Path) -> Program:
    """A network at batch 1, bound to kernels; its artefact is made in ``folder`` if need be."""
    artefact = asyncio.run(artefact_of(network, folder))
    table = ModelTable(backend)
    digest = read_report(artefact).sha256
    table.load(digest, artefact)
    inputs = inputs_of(NETWORKS[network])
    specs = tuple((name, spec_of(tensor)) for name, tensor in inputs.items())
    return table.program(ProgramKey(digest, specs))


def sums_and_wholes(backend: CudaBackend, program: Program) -> Iterator[Row]:
    """What a planner believes of its plan, what the whole graph takes, and who is fastest."""
    costs = StageCosts(backend, program)
    planned = {name: plan(program.graph, costs, PlannerSettings.parse(name)) for name in PLANNERS}
    sums_us = {name: _sum_us(result, costs) for name, result in planned.items()}
    backend.forget()
    wholes_us = [
        {name: _whole_us(backend, program, result) for name, result in planned.items()}
        for _ in range(ROUNDS)
    ]
    for name, result in planned.items():
        whole_us = [round_[name] for round_ in wholes_us]
        figures: dict[str, Figure] = {f"whole_us_{i}": us for i, us in enumerate(whole_us)}
        ratio = sums_us[name] / sorted(whole_us)[len(whole_us) // 2]
        yield Row(
            f"{program.graph.name}, {name}, {len(result.stages)} stages",
            {"sum_us": sums_us[name], **figures, "sum_over_whole": ratio},
        )
    rankings = [_ranking(us) for us in (sums_us, *wholes_us)]
    yield Row(
        "ranking, fastest first",
        {"by_sum": rankings[0], "by_whole": rankings[1]}
        | {"stable": len(set(rankings[1:])) == 1, "sum_is_right": len(set(rankings)) == 1},
    )


def _sum_us(planned: Planned, costs: StageCosts) -> float:
    return sum(costs.stage_latency_us(stage) for stage in planned.stages)


def _ranking(us: Mapping[str, float]) -> str:
    return " < ".join(sorted(us, key=lambda name: us[name]))


def _whole_us(backend: CudaBackend, program: Program, planned: Planned) -> float:
    """The device's time of a plan, captured afresh."""
    ready = backend.prepare(program, planned.plan)
    try:
        inputs = seeded_inputs(program.graph, {}, 1)
        ready.run(inputs)
        times_us = sorted(ready.device_us(inputs) for _ in range(RUNS))
        return times_us[len(times_us) // 2]
    finally:
        ready.release()


def memory(backend: CudaBackend, program: Program) -> Iterator[Row]:
    """Device memory of one plan by when tensors are released; whether outputs stay the same."""
    units = len(program.units)
    planned = plan(program.graph, _Even(), PlannerSettings.parse("greedy"))
    ready = backend.prepare(program, planned.plan)
    cost = ready.plan.cost
    yield Row(
        f"greedy plan of {units} units, released when every later launch comes after",
        {"peak_mib": cost.peak_bytes / 2**20, "pool_mib": cost.pool_bytes / 2**20}
        | {"eager_because": ready.plan.eager_because},
    )
    yield Row("two replays, NaN through all buffers in between", _replays(ready, program))
    calls = plan_calls(program, planned.plan)
    noted = tuple(replace(call, bound=_noting_streams(call.bound)) for call in calls)
    settings = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "default allocator")
    yield Row("nothing released", _peak(ready, calls, {}))
    yield Row(
        f"released after the last reader, with record_stream, {settings}",
        _peak(ready, noted, _last_readers(program, calls)),
    )
    ready.release()


class _Even:
    """Costs that depend on no device, so that every device gets the same plan."""

    def stage_latency_us(self, stage: Stage) -> float:
        return 1.0 + len(stage.groups)


def _replays(ready: OnGpu, program: Program) -> dict[str, Figure]:
    """Whether a replay after a run on NaN gives the same bits as one before it."""
    inputs = seeded_inputs(program.graph, {}, 1)
    poison = {name: torch.full_like(x, torch.nan) if x.is_floating_point() else x
              for name, x in inputs.items()}  # fmt: skip
    first = {name: tensor.clone() for name, tensor in ready.run(inputs).items()}
    ready.run(poison)
    again = ready.run(inputs)
    finite = all(bool(tensor.isfinite().all()) for tensor in first.values())
    same = all(torch.equal(first[name], again[name]) for name in first)
    return {"bitwise_equal": same, "finite": finite}


def _last_readers(program: Program, calls: Sequence[StreamCall]) -> dict[int, list[int]]:
    """Call -> slots that no later call, in launch order, reads or fills."""
    kept = program.kept()
    results = {slot for call in calls for slot in call.bound.outputs} - kept
    last = {slot: i for i, call in enumerate(calls)
            for slot in (*call.bound.inputs, *call.bound.outputs) if slot in results}  # fmt: skip
    points: dict[int, list[int]] = {}
    for slot, at in last.items():
        points.setdefault(at + 1, []).append(slot)
    return points


def _noting_streams(bound: BoundUnit) -> BoundUnit:
    """The same unit, telling the allocator on which stream its inputs are read."""
    run = bound.kernel.run_on(1)

    def noting(*inputs: Tensor | None) -> Tensor | tuple[Tensor, ...]:
        for tensor in inputs:
            if tensor is not None and tensor.is_cuda:
                tensor.record_stream(torch.cuda.current_stream())
        return run(*inputs)

    return replace(bound, kernel=Kernel(bound.kernel.variant, noting))


def _peak(
    ready: OnGpu, calls: Sequence[StreamCall], releases: Mapping[int, Sequence[int]]
) -> dict[str, Figure]:
    """Peak memory of a capture in a pool of its own.

    ``releases``: call -> slots of tensors that are released before it.

    The plan's inputs are counted, as in ``PreparationCost.peak_bytes``.
    """
    driver, streams = ready.executor.driver, ready.plan.streams
    pool = driver.pool()
    commands = lower(calls, order_calls(calls), releases)
    env = ready.plan.program.environment(ready.plan.inputs)
    driver.synchronise()
    before = driver.memory()
    driver.reset_peak()
    with capturing(driver, streams, pool) as captured:
        issue(commands, env, driver, streams)
    after = driver.memory()
    driver.destroy(captured[0])
    env.clear()
    driver.release_pool(pool)
    inputs = sum(tensor.nbytes for tensor in ready.plan.inputs.values())
    return {
        "peak_mib": (after.peak_allocated - before.allocated + inputs) / 2**20,
        "pool_mib": (after.reserved - before.reserved) / 2**20,
    }
