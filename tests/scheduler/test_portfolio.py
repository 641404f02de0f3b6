from __future__ import annotations

from collections.abc import Sequence

import pytest

from braid.core.plan import sequential_plan, verify_plan
from braid.scheduler.cost import OperatorLatencies
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import Planned, plan
from braid.scheduler.portfolio import candidates
from tests.scheduler.networks import INCEPTION_E
from tests.scheduler.oracle import graph_of, random_graph

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
