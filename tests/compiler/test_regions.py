"""Plans of regions from what a device measures of parts; the device is a table."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from braid.compiler.regions import PLANNER, plan_of_regions, with_present_engines
from braid.compiler.work import Work
from braid.core.errors import BraidError, InvalidArtefact, PreconditionFailed, WorkerRestarting
from braid.core.graph import Operator, OpGraph
from braid.core.plan import (
    EnginePart,
    Launch,
    StreamPlan,
    plan_from_json,
    plan_to_json,
    runs_in_sequence,
    verify_plan,
)
from braid.core.program import ProgramKey
from braid.core.runtimes import ONNXRUNTIME, OPENVINO
from braid.core.schedule import Schedule, ScheduleKey
from braid.core.tensor import TensorType
from braid.engine.link.messages import MeasureParts, PartMeasurement, PartMeasurements
from braid.scheduler.planners import Planned

SPEC = TensorType("FP32", (1, 4))
CONVOLUTIONS, PRODUCTS = 6, 4
NAMES = [f"u{at}" for at in range(CONVOLUTIONS + PRODUCTS)]
SOFTWARE = {ONNXRUNTIME: "1.0", OPENVINO: "2.0"}

#   x ─> 6 convolutions ─> 4 products ─> y
GRAPH = OpGraph(
    "chain",
    {"x": SPEC},
    {"y": NAMES[-1]},
    {},
    tuple(
        Operator(
            name, "aten.convolution" if at < CONVOLUTIONS else "aten.linear", (source,), (name,)
        )
        for at, (source, name) in enumerate(zip(["x", *NAMES], NAMES, strict=False))
    ),
    dict.fromkeys(NAMES, SPEC),
    {name: (name,) for name in NAMES},
)

Latency = Callable[[EnginePart], float | None]


def planned(latency_us: Latency, graph: OpGraph = GRAPH, **changes: Any) -> Planned | None:
    """The plan of regions by a device that takes so long for parts; None: it refuses one."""

    async def ask(request: MeasureParts) -> PartMeasurements:
        measured = [latency_us(part) for (part,) in request.stages]
        return PartMeasurements(
            tuple(PartMeasurement(us, "" if us is not None else "it refuses it") for us in measured)
        )

    async def latencies(names: list[str]) -> dict[str, float]:
        return dict.fromkeys([name for name in names if " in " not in name], 1000.0)

    async def keep(_: object) -> None: ...

    work = SimpleNamespace(
        device=SimpleNamespace(ask=ask, software=SOFTWARE),
        cache=SimpleNamespace(find_latencies=latencies, keep_latencies=keep),
        runtimes=lambda _: (ONNXRUNTIME, OPENVINO),
        **changes,
    )
    return asyncio.run(plan_of_regions(cast(Work, work), ProgramKey("d", ()), graph, 2))


def by_kind(part: EnginePart) -> float:
    """Own convolutions are twice as fast as those of engines, products of OpenVINO are."""
    convolutions = sum(unit < CONVOLUTIONS for unit in part.units)
    products = len(part.units) - convolutions
    slow = 1.0 if part.threads == 2 else 3.0
    own, fast = part.engine == "", part.engine == OPENVINO
    return slow * (1000 * convolutions * (1 if own else 2) + 1000 * products * (1 if fast else 2))


def test_each_region_runs_where_it_is_fastest() -> None:
    found = planned(by_kind)

    assert found is not None
    assert found.planner == PLANNER
    products = tuple(range(CONVOLUTIONS, len(NAMES)))
    assert found.plan.parts == (EnginePart(products, OPENVINO, "2.0", 2),)
    verify_plan(found.plan, GRAPH.predecessors())
    assert found.predicted_us == pytest.approx(10_000, rel=0.02)
    assert [stage.operators for stage in found.stages] == [tuple(range(CONVOLUTIONS)), products]
    latencies_us = [stage.latency_us or 0.0 for stage in found.stages]
    assert latencies_us == pytest.approx([6_000, 4_000], rel=0.02)
    assert sum(latencies_us) == pytest.approx(found.predicted_us)
    assert not runs_in_sequence(found.plan)


def test_there_is_no_mixed_plan_where_one_engine_is_best_everywhere() -> None:
    assert planned(lambda part: 1000.0 * len(part.units) * (1 + (part.engine == OPENVINO))) is None


def test_a_part_that_is_refused_costs_that_part_only() -> None:
    found = planned(lambda part: None if part.engine == ONNXRUNTIME else by_kind(part))
    none = planned(lambda part: by_kind(part) if part.engine == "" else None)

    assert found is not None
    assert {part.engine for part in found.plan.parts} == {OPENVINO}
    assert none is None


@pytest.mark.parametrize("error", [PreconditionFailed("no file"), WorkerRestarting("it died")])
def test_a_device_that_fails_costs_the_candidate_only(error: BraidError) -> None:
    def fail(_: EnginePart) -> float:
        raise error

    assert planned(fail) is None


def test_values_without_a_tensor_of_the_file_leave_nothing_to_cut() -> None:
    assert planned(by_kind, replace(GRAPH, sources={})) is None


PART = EnginePart((1, 2), OPENVINO, "2.0", 2)
LAUNCHES = tuple(Launch(unit, 0) for unit in range(3))


def test_a_plan_with_parts_survives_json_and_one_without_says_nothing_of_them() -> None:
    plan = StreamPlan(LAUNCHES, 1, parts=(PART,))

    assert plan_from_json(plan_to_json(plan)) == plan
    assert "parts" not in plan_to_json(StreamPlan(LAUNCHES, 1))


@pytest.mark.parametrize(
    "plan",
    [
        {"parts": (EnginePart((0, 2), OPENVINO, "2.0", 2),)},  # not in a row
        {"parts": (PART, PART)},
        {"parts": (PART,), "merges": ((0, 1),)},
        {"parts": (PART,), "barriers": (2,)},
        {"parts": (EnginePart((2, 3), OPENVINO, "2.0", 2),)},  # never launched
    ],
)
def test_parts_are_launched_in_a_row_and_once(plan: dict[str, Any]) -> None:
    with pytest.raises(InvalidArtefact):
        StreamPlan(LAUNCHES, 1, **plan)


@pytest.mark.parametrize(
    ("software", "reason"),
    [
        (SOFTWARE, ""),
        ({OPENVINO: "2.1"}, "ran in OpenVINO 2.0, and OpenVINO is 2.1"),
        ({ONNXRUNTIME: "1.0"}, "ran in OpenVINO 2.0, and OpenVINO is gone"),
    ],
)
def test_a_schedule_is_made_again_where_its_engine_is_another(
    software: dict[str, str], reason: str
) -> None:
    plan = StreamPlan(LAUNCHES, 1, parts=(PART,))
    schedule = Schedule(ScheduleKey("d", "cpu", 1), PLANNER, plan, (), ("a", "b", "c"))

    present = with_present_engines(schedule, software)

    if not reason:
        assert present is schedule
        return
    assert reason in present.provenance.again
    assert with_present_engines(present, software) is present
