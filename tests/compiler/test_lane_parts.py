"""Plans of branches and of rows, from what a device measures of parts; the device is a table."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from braid.compiler.lane_parts import BRANCHES, ROWS, plans_on_lanes
from braid.compiler.work import Work
from braid.core.errors import InvalidArtefact, WorkerRestarting
from braid.core.graph import Operator, OpGraph
from braid.core.measurement import StageLatency
from braid.core.plan import (
    EnginePart,
    Launch,
    StreamPlan,
    plan_from_json,
    plan_to_json,
    verify_plan,
)
from braid.core.program import ProgramKey
from braid.core.runtimes import ONNXRUNTIME, OPENVINO
from braid.core.tensor import TensorType
from braid.engine.importer.host.report import BatchAxes
from braid.engine.link.messages import MeasureParts, PartMeasurement, PartMeasurements
from braid.scheduler.planners import Planned

SPEC = TensorType("FP32", (5, 4))
UNITS = [("u0", "x"), ("u1", "y"), ("u2", "u0"), ("u3", "u1"), ("u4", "u2")]

#   x ─> u0 ─> u2 ─> u4 (3 units)      y ─> u1 ─> u3
TOWERS = OpGraph(
    "towers",
    {"x": SPEC, "y": SPEC},
    {"p": "u4", "q": "u3"},
    {},
    tuple(Operator(name, "aten.relu", (source,), (name,)) for name, source in UNITS),
    dict.fromkeys((name for name, _ in UNITS), SPEC),
    {name: (name,) for name, _ in UNITS},
)
CHAIN = OpGraph(
    "chain",
    {"x": SPEC},
    {"p": "u2"},
    {},
    tuple(
        Operator(name, "aten.relu", (source,), (name,))
        for name, source in (("u0", "x"), ("u1", "u0"), ("u2", "u1"))
    ),
    dict.fromkeys(("u0", "u1", "u2"), SPEC),
    {name: (name,) for name in ("u0", "u1", "u2")},
)
ROWS_APART = BatchAxes({"x": 0}, {"p": 0})
Latency = Callable[[EnginePart], float | None]


class FakeDevice:
    """Takes for a stage as long as its longest part, and a tenth more for each further one."""

    def __init__(self, latency_us: Latency) -> None:
        self._latency_us = latency_us
        self.software = {ONNXRUNTIME: "1.0", OPENVINO: "2.0"}
        self.known: dict[str, StageLatency] = {}
        self.asked = 0

    async def ask(self, request: MeasureParts) -> PartMeasurements:
        self.asked += len(request.stages)
        outcomes = []
        for stage in request.stages:
            alone = [self._latency_us(part) for part in stage]
            if None in alone:
                outcomes.append(PartMeasurement(problem="it refuses it"))
            else:
                us = max(filter(None, alone)) * (0.9 + 0.1 * len(stage))
                outcomes.append(PartMeasurement(us))
        return PartMeasurements(tuple(outcomes))

    async def find_latencies(self, names: list[str]) -> dict[str, float]:
        units = dict.fromkeys([name for name in names if " in " not in name], 1000.0)
        return units | {n: self.known[n].latency_us for n in names if n in self.known}

    async def keep_latencies(self, latencies: dict[str, StageLatency]) -> None:
        self.known |= latencies

    def plans(self, graph: OpGraph, rows: int = 1, batch: BatchAxes | None = None) -> list[Planned]:
        work = SimpleNamespace(
            device=self,
            cache=self,
            batch_size=rows,
            imported=SimpleNamespace(report=SimpleNamespace(batch=batch)),
            runtimes=lambda _: (ONNXRUNTIME, OPENVINO),
        )
        return asyncio.run(plans_on_lanes(cast(Work, work), ProgramKey("d", ()), graph, 2))


def own_is_slow(part: EnginePart) -> float:
    unit_us = {"": 1200.0, ONNXRUNTIME: 900.0, OPENVINO: 800.0}[part.engine]
    return unit_us * len(part.units) * (part.rows or 5) / 5


def test_each_tower_runs_on_a_lane_in_the_engine_that_is_fastest() -> None:
    (plan,) = FakeDevice(own_is_slow).plans(TOWERS)

    assert plan.planner == BRANCHES
    assert plan.plan.parts == (
        EnginePart((0, 2, 4), OPENVINO, "2.0", 1),
        EnginePart((1, 3), OPENVINO, "2.0", 1),
    )
    assert plan.plan.streams == 2
    assert plan.plan.barriers == ()
    assert plan.predicted_us == pytest.approx(2400 * 1.1)
    assert [stage.groups for stage in plan.stages] == [((0, 2, 4), (1, 3))]
    assert plan.stages[0].latency_us == plan.predicted_us
    verify_plan(plan.plan, TOWERS.predecessors())


def test_towers_on_own_kernels_are_a_plan_without_parts() -> None:
    (plan,) = FakeDevice(lambda part: None if part.engine else own_is_slow(part)).plans(TOWERS)

    assert plan.plan.parts == ()
    assert {(launch.unit, launch.stream) for launch in plan.plan.launches} == {
        *((0, 0), (2, 0), (4, 0)),
        *((1, 1), (3, 1)),
    }


def test_five_rows_are_divided_as_three_and_two() -> None:
    (plan,) = FakeDevice(own_is_slow).plans(CHAIN, 5, ROWS_APART)

    assert plan.planner == ROWS
    assert [part.rows for part in plan.plan.parts] == [3, 2]
    assert {part.engine for part in plan.plan.parts} == {OPENVINO}
    assert plan.predicted_us == pytest.approx(800 * 3 * 3 / 5 * 1.1)
    assert [stage.latency_us for stage in plan.stages] == [plan.predicted_us]
    assert plan_from_json(plan_to_json(plan.plan)) == plan.plan


@pytest.mark.parametrize(
    "batch",
    [
        None,
        BatchAxes({"x": 0}, {"p": 0}, alone=True),
        BatchAxes({"x": 0}, {"p": 1}),
        BatchAxes({"x": 0}, {"p": None}),
    ],
)
def test_rows_that_may_depend_on_each_other_stay_together(batch: BatchAxes | None) -> None:
    assert FakeDevice(own_is_slow).plans(CHAIN, 5, batch) == []


def test_what_is_slow_on_lanes_is_not_compared() -> None:
    assert FakeDevice(lambda part: 9000.0).plans(TOWERS) == []
    assert FakeDevice(lambda part: 9000.0).plans(CHAIN, 5, ROWS_APART) == []


def test_nothing_is_measured_twice() -> None:
    device = FakeDevice(own_is_slow)
    first = device.plans(TOWERS)
    asked = device.asked

    assert device.plans(TOWERS) == first
    assert device.asked == asked


def test_a_device_that_dies_costs_these_plans_only() -> None:
    def die(_: EnginePart) -> float:
        raise WorkerRestarting("it died")

    assert FakeDevice(die).plans(TOWERS) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"parts": (EnginePart((0, 1), "", "", 1, 3), EnginePart((0, 1, 2), "", "", 1, 2))},
        {"parts": (EnginePart((0, 1, 2), "", "", 1, 3), EnginePart((0, 1), OPENVINO, "2.0", 1))},
        {"parts": (EnginePart((0, 1, 2), "", "", 1, 3),) * 2, "merges": ((0, 1),)},
    ],
)
def test_parts_of_some_rows_have_all_units_and_stand_alone(changes: dict[str, Any]) -> None:
    launches = tuple(Launch(unit, 0) for unit in range(3))
    with pytest.raises(InvalidArtefact):
        StreamPlan(launches, 1, **changes)
