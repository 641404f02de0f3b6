"""Every planner: its options as text, its plans, the portfolio of all."""

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braid.core.errors import InvalidRequest
from braid.core.measurement import DeviceFacts, StageOverheads
from braid.core.plan import sequential_plan, verify_plan
from braid.scheduler.cost import OperatorLatencies
from braid.scheduler.options import JOINS, PLANNERS, Join, PlannerSettings
from braid.scheduler.planners import Planned, plan
from braid.scheduler.portfolio import candidates
from braid.scheduler.registry import PLANNERS as REGISTRY
from braid.scheduler.units import UnitGraph
from tests.scheduler.networks import INCEPTION_E
from tests.scheduler.oracle import graph_of, random_graph

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


def test_the_text_names_the_planner_and_its_pruning() -> None:
    assert PlannerSettings("ios").text == "ios(r=3,s=8)"
    assert PlannerSettings("sequential").text == "sequential"


@pytest.mark.parametrize(
    "options",
    [
        PlannerSettings("ios"),
        PlannerSettings("sequential"),
        PlannerSettings("ios", max_group_ops=None, max_groups=2, single_root=True),
        PlannerSettings("ios", max_block_ops=None, max_streams=2),
    ],
)
def test_the_text_reads_back(options: PlannerSettings) -> None:
    assert PlannerSettings.parse(options.text) == options
    assert hash(PlannerSettings.parse(options.text)) == hash(options)


@pytest.mark.parametrize("text", ["", "magic", "ios(q=3)", "ios(r=0)", "ios(r=-1)", "ios(r=3"])
def test_what_is_not_a_planner_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        PlannerSettings.parse(text)


LIMITS = PlannerSettings("portfolio")


def names(entered: Sequence[Planned]) -> list[str]:
    return [PlannerSettings.parse(candidate.planner).planner for candidate in entered]


def test_sequential_comes_first_and_equal_plans_come_once() -> None:
    graph = graph_of(INCEPTION_E)

    entered = candidates(graph, OperatorLatencies([1.0] * len(graph)), LIMITS)

    plans = [candidate.plan for candidate in entered]
    assert plans[0] == sequential_plan(len(graph))
    assert len(plans) == len(set(plans))
    assert {"lazy-ios", "greedy"} <= {
        PlannerSettings.parse(candidate.planner).planner for candidate in entered
    }


def test_a_chain_has_only_the_sequential_plan() -> None:
    chain = graph_of([[], [0], [1], [2]])

    entered = candidates(chain, OperatorLatencies([1.0] * 4), LIMITS)

    assert [PlannerSettings.parse(candidate.planner).planner for candidate in entered] == [
        "sequential"
    ]


@pytest.mark.parametrize("seed", range(15))
def test_each_candidate_can_be_made_again_from_its_options(seed: int) -> None:
    graph, _ = random_graph(seed, max_ops=10)
    cost = OperatorLatencies([1.0 + unit % 4 for unit in range(len(graph))], 0.2)

    for candidate in candidates(graph, cost, LIMITS):
        verify_plan(candidate.plan, graph.predecessors)
        again = plan(graph, cost, PlannerSettings.parse(candidate.planner))
        if candidate.stages:
            assert again.stages == candidate.stages
        else:
            assert again.plan == candidate.plan
