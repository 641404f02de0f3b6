"""Plans of regions, branches and rows, from a table of what parts take."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf

import pytest

from braid.core.graph import Operator, OpGraph
from braid.core.measurement import DeviceFacts
from braid.core.plan import (
    EnginePart,
    Launch,
    StreamPlan,
    plan_from_json,
    plan_to_json,
    runs_in_sequence,
    verify_plan,
)
from braid.core.runtimes import ONNXRUNTIME, OPENVINO
from braid.core.schedule import Stage
from braid.core.tensor import TensorType
from braid.scheduler.cost import Parts
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import Planned
from braid.scheduler.portfolio import candidates
from braid.scheduler.registry import IN_PARTS

SPEC = TensorType("FP32", (5, 4))
CONVOLUTIONS, PRODUCTS = 6, 4
ENGINES = {ONNXRUNTIME: "1.0", OPENVINO: "2.0"}


def made_of(units: Mapping[str, str], outputs: Mapping[str, str], kind: str) -> OpGraph:
    """A graph of units of a kind by name, each of which reads one value; files know all values."""
    made = tuple(Operator(name, kind, (source,), (name,)) for name, source in units.items())
    inputs = {source: SPEC for source in units.values() if source not in units}
    specs, sources = dict.fromkeys(units, SPEC), {name: (name,) for name in units}
    return OpGraph("drawn", inputs, outputs, {}, made, specs, sources)


#   x ─> 6 convolutions ─> 4 products ─> y
NAMES = [f"u{at}" for at in range(CONVOLUTIONS + PRODUCTS)]
ROW = made_of(dict(zip(NAMES, ["x", *NAMES], strict=False)), {"y": NAMES[-1]}, "aten.linear")
MIXED = replace(
    ROW,
    operators=tuple(
        replace(unit, kind="aten.convolution") if at < CONVOLUTIONS else unit
        for at, unit in enumerate(ROW.operators)
    ),
)
#   x ─> u0 ─> u2 ─> u4 (3 units)      y ─> u1 ─> u3
TOWERS = made_of(
    {"u0": "x", "u1": "y", "u2": "u0", "u3": "u1", "u4": "u2"}, {"p": "u4", "q": "u3"}, "aten.relu"
)
CHAIN = made_of({"u0": "x", "u1": "u0", "u2": "u1"}, {"p": "u2"}, "aten.relu")


class Table:
    """A unit takes a millisecond; parts as long as the longest, a tenth more for each further."""

    def __init__(self, latency_us: Callable[[EnginePart], float]) -> None:
        self._latency_us = latency_us

    def stage_latency_us(self, stage: Stage) -> float:
        return 1000.0 * max(map(len, stage.groups))

    def parts_us(self, stages: Sequence[Parts]) -> list[float]:
        return [max(map(self._latency_us, parts)) * (0.9 + 0.1 * len(parts)) for parts in stages]


def planned(
    graph: OpGraph, latency_us: Callable[[EnginePart], float], rows: int = 0
) -> list[Planned]:
    """Plans with parts among the candidates; infinite: an engine refuses a part."""
    facts = DeviceFacts(threads=2, engines=ENGINES, rows=rows)
    found = candidates(graph, Table(latency_us), PlannerSettings(), facts)
    in_parts = [each for each in found if each.planner in IN_PARTS]
    for each in in_parts:
        verify_plan(each.plan, graph.predecessors())
        assert not runs_in_sequence(each.plan)
        assert plan_from_json(plan_to_json(each.plan)) == each.plan
        assert each.predicted_us == pytest.approx(sum(us.latency_us or 0.0 for us in each.stages))
    return in_parts


def by_kind(part: EnginePart) -> float:
    """Own convolutions are twice as fast as those of engines, products of OpenVINO are."""
    convolutions = sum(unit < CONVOLUTIONS for unit in part.units)
    products = len(part.units) - convolutions
    slow = 1.0 if part.threads == 2 else 3.0
    own, fast = part.engine == "", part.engine == OPENVINO
    return slow * (1000 * convolutions * (1 if own else 2) + 1000 * products * (1 if fast else 2))


def test_each_region_runs_where_it_is_fastest() -> None:
    (found,) = planned(MIXED, by_kind)

    assert found.planner == "regions"
    products = tuple(range(CONVOLUTIONS, len(NAMES)))
    assert found.plan.parts == (EnginePart(products, OPENVINO, "2.0", 2),)
    assert found.predicted_us == pytest.approx(10_000, rel=0.02)
    assert [stage.operators for stage in found.stages] == [tuple(range(CONVOLUTIONS)), products]
    latencies_us = [stage.latency_us for stage in found.stages]
    assert latencies_us == pytest.approx([6_000, 4_000], rel=0.02)


def test_there_is_no_mixed_plan_where_one_engine_is_best_everywhere() -> None:
    assert not planned(MIXED, lambda part: 1e3 * len(part.units) * (1 + (part.engine == OPENVINO)))


def test_a_part_that_is_refused_costs_that_part_only() -> None:
    (found,) = planned(MIXED, lambda part: inf if part.engine == ONNXRUNTIME else by_kind(part))

    assert {part.engine for part in found.plan.parts} == {OPENVINO}
    assert not planned(MIXED, lambda part: inf if part.engine else by_kind(part))
    assert not planned(MIXED, lambda _: inf, rows=5)


def test_values_without_a_tensor_of_the_file_leave_nothing_to_cut() -> None:
    assert not planned(replace(MIXED, sources={}), by_kind)


def own_is_slow(part: EnginePart) -> float:
    unit_us = {"": 1200.0, ONNXRUNTIME: 900.0, OPENVINO: 800.0}[part.engine]
    return unit_us * len(part.units) * (part.rows or 5) / 5


def test_each_tower_runs_on_a_lane_in_the_engine_that_is_fastest() -> None:
    (found,) = planned(TOWERS, own_is_slow)

    assert found.planner == "branches"
    assert found.plan.parts == (
        EnginePart((0, 2, 4), OPENVINO, "2.0", 1),
        EnginePart((1, 3), OPENVINO, "2.0", 1),
    )
    assert (found.plan.streams, found.plan.barriers) == (2, ())
    assert found.predicted_us == pytest.approx(2400 * 1.1)
    assert [stage.groups for stage in found.stages] == [((0, 2, 4), (1, 3))]


def test_towers_on_own_kernels_are_a_plan_without_parts() -> None:
    facts = DeviceFacts(threads=2, engines=ENGINES)
    table = Table(lambda part: inf if part.engine else own_is_slow(part))

    found = candidates(TOWERS, table, PlannerSettings(), facts)

    (towers,) = [each for each in found if "branches" in (each.planner, *each.also)]
    assert towers.plan.parts == ()
    assert {(launch.unit, launch.stream) for launch in towers.plan.launches} == {
        *((0, 0), (2, 0), (4, 0)),
        *((1, 1), (3, 1)),
    }


def test_five_rows_are_divided_as_three_and_two() -> None:
    (found,) = planned(CHAIN, own_is_slow, rows=5)

    assert found.planner == "rows"
    assert [part.rows for part in found.plan.parts] == [3, 2]
    assert {part.engine for part in found.plan.parts} == {OPENVINO}
    assert found.predicted_us == pytest.approx(800 * 3 * 3 / 5 * 1.1)
    assert len(found.stages) == 1


def test_rows_that_may_depend_on_each_other_stay_together() -> None:
    assert not planned(CHAIN, own_is_slow)


def test_what_is_slow_on_lanes_is_not_compared() -> None:
    assert not planned(TOWERS, lambda _: 9000.0)
    assert not planned(CHAIN, lambda _: 9000.0, rows=5)


def test_without_engines_nothing_has_parts() -> None:
    facts = DeviceFacts(threads=2, rows=5)

    found = candidates(TOWERS, Table(own_is_slow), PlannerSettings(), facts)

    assert all("branches" not in (each.planner, *each.also) for each in found)


def test_a_plan_without_parts_says_nothing_of_them() -> None:
    launches = tuple(Launch(unit, 0) for unit in range(3))
    assert "parts" not in plan_to_json(StreamPlan(launches, 1))
