"""The rule of release: no two launches in no certain order touch the same bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from benchmarks.cuda.library import artefact_of
from benchmarks.networks.registry import NETWORKS, inputs_of
from braid.core.measurement import DeviceFacts
from braid.core.program import ProgramKey
from braid.engine.cuda.backend import CudaBackend
from braid.engine.cuda.executor import CudaExecutor
from braid.engine.cuda.graphs import prepare
from braid.engine.cuda.graphs.calls import StreamCall
from braid.engine.cuda.graphs.commands import Order
from braid.engine.cuda.graphs.release import SlotAliases
from braid.engine.cuda.opening import open_backend
from braid.engine.importer.host.report import read_report
from braid.engine.ops.dtypes import spec_of
from braid.engine.program.merge import merge_groups
from braid.engine.program.program import Program
from braid.engine.timing.samples import TimerOptions
from braid.engine.worker.models import ModelTable
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import plan
from tests.engine.cuda.graphs import random_plan
from tests.engine.cuda.test_networks import PLANNERS, CountingCost
from tests.engine.cuda.test_on_gpu import random_program
from tests.gpu_dry.launches import NotingDriver

SEEDS = range(40)

Recipes = Callable[[Sequence[str]], Path]


def races_of_random_plans(executor: CudaExecutor, driver: NotingDriver) -> int:
    races = 0
    for seed in SEEDS:
        program = random_program(seed, driver)
        prepared = executor.prepare(program, random_plan(program, seed, barriers=seed % 2 == 0))
        assert not prepared.eager_because
        assert sum(bool(launch.operations) for launch in driver.launches) > 1
        races += driver.races()
        executor.release(prepared)
    return races


def test_random_plans_have_no_race(executor: CudaExecutor, driver: NotingDriver) -> None:
    assert races_of_random_plans(executor, driver) == 0


def after_the_last_reader(
    calls: Sequence[StreamCall], order: Order, aliases: SlotAliases, keep: frozenset[int]
) -> Mapping[int, list[int]]:
    """A rule that forgets streams: a slot goes as soon as the host has launched its last reader."""
    last = {slot: i for i, call in enumerate(calls) for slot in call.bound.outputs}
    last |= {slot: i for i, call in enumerate(calls) for slot in call.bound.inputs if slot in last}
    kept = {aliases.root(slot) for slot in keep}
    points: dict[int, list[int]] = {}
    for slot, at in last.items():
        if aliases.root(slot) not in kept and at + 1 < len(calls):
            points.setdefault(at + 1, []).append(slot)
    return points


def test_a_rule_that_forgets_streams_is_caught(
    executor: CudaExecutor, driver: NotingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "release_points", after_the_last_reader)

    assert races_of_random_plans(executor, driver) > 10


def program_of(backend: CudaBackend, network: str, folder: Path) -> Program:
    """A network at batch 1, bound to kernels."""
    artefact = asyncio.run(artefact_of(network, folder))
    digest = read_report(artefact).sha256
    table = ModelTable(backend)
    table.load(digest, artefact)
    inputs = inputs_of(NETWORKS[network])
    return table.program(ProgramKey(digest, tuple((n, spec_of(t)) for n, t in inputs.items())))


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("network", ["squeezenet", "googlenet"])
def test_plans_of_networks_have_no_race(
    driver: NotingDriver, recipes: Recipes, network: str, planner: str
) -> None:
    backend = open_backend(1 << 30, TimerOptions(), host_threads=2)
    program = program_of(backend, network, recipes([network]))
    executor = CudaExecutor(driver)
    facts = DeviceFacts(merge_groups=tuple(map(tuple, merge_groups(program.graph))))
    stream_plan = plan(program.graph, CountingCost(), PlannerSettings.parse(planner), facts).plan

    prepared = executor.prepare(program, stream_plan)

    assert not prepared.eager_because
    assert len(driver.launches) >= len(program.units) // 2
    assert driver.races() == 0
    executor.close()
    backend.close()
