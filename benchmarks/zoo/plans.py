"""Braid as a contender: what it serves, and its sequential plan; and what it found for a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

import braid
from benchmarks.zoo.contender import Contestant, Load, turns_of
from benchmarks.zoo.feeds import Arrays
from braid.core.errors import PreconditionFailed
from braid.core.program import ProgramKey
from braid.core.runtimes import RUNTIMES
from braid.core.schedule import SEQUENTIAL, Schedule
from braid.engine.cpu.backend import CpuBackend
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.importer.host.report import read_report
from braid.engine.ops.dtypes import spec_of, tensor_of
from braid.engine.runtime.memory import keep_freed_memory
from braid.engine.runtime.threads import usable_cpus
from braid.engine.worker.models import ModelTable


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """What Braid found for a file: candidates of the comparison, and which engine runs what."""

    planner: str = ""  # empty: it is served whole, without a plan
    plan_id: str = ""
    candidates: Mapping[str, float] = field(default_factory=dict)  # that may serve, ms by name
    refused: Mapping[str, str] = field(default_factory=dict)  # candidate -> why
    fallbacks: tuple[str, ...] = ()  # why something simpler serves than was found or asked
    units: Mapping[str, int] = field(default_factory=dict)  # engine that serves -> units
    kinds_ms: Mapping[str, float] = field(default_factory=dict)  # kind -> own units, each alone
    choices: Mapping[str, str] = field(default_factory=dict)  # unusual kernels
    digest: str = ""


def plan_facts(net: braid.Network, rows: int) -> PlanFacts:
    found = net.schedules.get(rows)
    if found is None:
        return PlanFacts(fallbacks=tuple(net.remarks))
    schedule, provenance = found.document, found.document.provenance
    kind_of = {operator.name: operator.kind for operator in found.graph.operators}
    kinds_ms = dict[str, float]()
    for unit, took_us in provenance.unit_us.items():
        kind = kind_of.get(unit, "other")
        kinds_ms[kind] = kinds_ms.get(kind, 0.0) + took_us / 1e3
    reasons = [f"{what} is left out: {why}" for what, why in provenance.left_out.items()]
    reasons += [provenance.reason] if provenance.reason else []
    return PlanFacts(
        planner=schedule.planner if provenance.promoted else SEQUENTIAL,
        plan_id=schedule.plan_id,
        candidates={
            candidate.full_name: candidate.latency_us / 1e3
            for candidate in provenance.candidates
            if candidate.latency_us is not None and not candidate.remark
        },
        refused={
            candidate.full_name: candidate.remark
            for candidate in provenance.candidates
            if candidate.remark
        },
        fallbacks=tuple(reasons),
        units=_units_by_engine(schedule),
        kinds_ms=kinds_ms,
        choices=dict(provenance.choices),
        digest=schedule.key.model_digest,
    )


def _units_by_engine(schedule: Schedule) -> dict[str, int]:
    """Count units of what serves by the engine that runs them; own kernels are "own"."""
    units = len(schedule.unit_names)
    if schedule.runtime and schedule.provenance.promoted:
        return {schedule.runtime: units}
    counts: Counter[str] = Counter()
    parts = schedule.plan.parts if schedule.provenance.promoted else ()
    for part in parts[:1] if any(part.rows for part in parts) else parts:
        counts[part.engine or "own"] += len(part.units)
    counts["own"] += units - counts.total()
    return {engine: count for engine, count in counts.items() if count}


def engine_names(candidates: Mapping[str, Any]) -> set[str]:
    """Return the engines among names of candidates; "own" for plans."""
    names = (name.partition(" in ")[0].removesuffix("-1") for name in candidates)
    return {name if name in RUNTIMES else "own" for name in names}


def serves(load: Load, feeds: Arrays, stack: ExitStack) -> Contestant:
    net = _compiled(load, stack)
    facts = asdict(plan_facts(net, load.rows))
    executable = net._main.executables.get(load.rows)
    return replace(_in_device_thread(net, executable, feeds), facts=facts)


def sequential(load: Load, feeds: Arrays, stack: ExitStack) -> Contestant:
    net = _compiled(load, stack)
    served = net._compiled.to_run(next(iter(net._planned)), load.rows)
    to_run = replace(served, plan=None, plan_id=SEQUENTIAL, runtime="")
    executable = net._device.call(lambda: net._device.prepare(to_run))
    return _in_device_thread(net, executable, feeds)


def _compiled(load: Load, stack: ExitStack) -> braid.Network:
    keep_freed_memory()  # as a worker does
    net = braid.compile(load.file, store=load.store, batch_sizes=[load.rows], planner=load.planner)
    return stack.enter_context(net)


def _in_device_thread(net: braid.Network, executable: Any, feeds: Arrays) -> Contestant:
    """Run the bare executable in a loop of its thread; a call where the content decides a plan."""
    given = {name: array for name, array in feeds.items() if name in net.inputs}
    if executable is None or net.static_inputs:
        outputs = net(given)
        outputs = outputs if isinstance(outputs, Mapping) else {net.outputs[0]: outputs}
        return Contestant({**outputs}, turns_of(lambda: net(given)))
    device = net._device
    given = {name: given[name] for name in executable.ready.program.graph.inputs}
    spare = executable.new_outputs()

    def run() -> Any:
        return executable.run(device.backend, given, spare)

    outputs = device.call(lambda: {name: value.copy() for name, value in run().items()})
    turn = turns_of(run)
    return Contestant(outputs, lambda count: device.call(lambda: turn(count)))


def plain(load: Load, feeds: Arrays, stack: ExitStack) -> Contestant:
    keep_freed_memory()
    artefact = Path(load.artefact)
    report = read_report(artefact)
    if report.static_inputs:
        raise PreconditionFailed(f"the content of {report.static_inputs} decides the plan")
    table = ModelTable(_backend(load.threads))
    table.load(report.sha256, artefact)
    stack.callback(table.unload, report.sha256)
    names = table.model(report.sha256).template.inputs
    given = {name: feeds[name] for name in names}
    specs = tuple((name, spec_of(tensor_of(array))) for name, array in given.items())
    ready = table.ready(table.program(ProgramKey(report.sha256, specs)), None)
    stack.callback(ready.release)
    with torch.inference_mode():
        outputs = {name: value.copy() for name, value in ready.run(given).items()}
    turn = torch.inference_mode()(turns_of(lambda: ready.run(given)))
    return Contestant(outputs, turn)


@cache
def _backend(threads: int) -> CpuBackend:
    """The only one of this process, as its lanes are."""
    return CpuBackend(CpuExecutor(threads, usable_cpus()[:threads]))
