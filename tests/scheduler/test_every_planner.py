"""What holds for every planner: its plan runs each unit once and respects every edge."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braid.core.errors import InvalidRequest
from braid.core.measurement import DeviceFacts, StageOverheads
from braid.core.plan import verify_plan
from braid.scheduler.cost import OperatorLatencies
from braid.scheduler.options import JOINS, PLANNERS, Join, PlannerSettings
from braid.scheduler.planners import plan
from braid.scheduler.registry import PLANNERS as REGISTRY
from braid.scheduler.units import UnitGraph
from tests.scheduler.oracle import graph_of

FACTS = DeviceFacts(overheads=StageOverheads(stage_us=0.0))


@st.composite
def problems(draw: st.DrawFn) -> tuple[UnitGraph, OperatorLatencies]:
    """Graphs of up to 60 units, from no edges to chains, and what the units cost."""
    n = draw(st.integers(1, 60))
    most = draw(st.integers(0, 4))
    edges = [
        draw(st.lists(st.integers(max(0, v - 12), v - 1), max_size=most)) if v else []
        for v in range(n)
    ]
    latency_us = draw(st.lists(st.sampled_from([1.0, 2.5, 7.0, 20.0]), min_size=n, max_size=n))
    overhead_us = draw(st.sampled_from([0.0, 0.5, 3.0]))
    return graph_of([sorted(set(row)) for row in edges]), OperatorLatencies(latency_us, overhead_us)


def check(problem: tuple[UnitGraph, OperatorLatencies], planner: str, join: Join) -> None:
    graph, cost = problem
    # Small blocks: the point is the plan, and thousands of large searches would take hours.
    options = PlannerSettings(planner, 2, 3, max_block_ops=9, max_streams=5, join=join)

    planned = plan(graph, cost, options, FACTS)

    verify_plan(planned.plan, graph.predecessors)
    assert planned.plan.streams <= 5
    if planned.stages:
        staged = [unit for stage in planned.stages for unit in stage.operators]
        assert sorted(staged) == list(range(len(graph)))


WITH_STAGES = ("greedy", "rammer", "ios-merge", "ios-parallel", "ios", "lazy-ios")
CASES: list[tuple[str, Join]] = [(planner, "stage") for planner in REGISTRY]
CASES += [(planner, join) for planner in WITH_STAGES for join in JOINS[1:]]


@pytest.mark.parametrize(("planner", "join"), CASES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems())
def test_its_plan_verifies(
    planner: str, join: Join, problem: tuple[UnitGraph, OperatorLatencies]
) -> None:
    check(problem, planner, join)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
@given(problem=problems())
def test_all_plans_verify_on_2000_graphs(problem: tuple[UnitGraph, OperatorLatencies]) -> None:
    for planner, join in CASES:
        check(problem, planner, join)


def test_every_name_has_a_planner() -> None:
    assert set(REGISTRY) | {"portfolio"} == set(PLANNERS)


def test_the_portfolio_is_not_one_plan() -> None:
    with pytest.raises(InvalidRequest, match="candidates"):
        plan(graph_of([[]]), OperatorLatencies([1.0]), PlannerSettings("portfolio"))
