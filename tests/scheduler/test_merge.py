"""Operator merge: candidates from the engine's rule, latency from the engine's cost."""

import pytest

from braid.core.measurement import DeviceFacts, StageOverheads
from braid.core.plan import verify_plan
from braid.core.schedule import Stage
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import plan
from tests.scheduler.oracle import graph_of

#   0 ─┬─> 1 ─┐
#      ├─> 2 ─┼─> 4      1, 2 and 3 read the same; 1 and 2 can be merged
#      └─> 3 ─┘
GRAPH = graph_of([[], [0], [0], [0], [1, 2, 3]])


class Cost:
    """A unit takes 10, groups side by side 9 each, a merged kernel what the test says."""

    def __init__(self, merged_us: float) -> None:
        self.merged_us = merged_us
        self.asked: list[Stage] = []

    def stage_latency_us(self, stage: Stage) -> float:
        self.asked.append(stage)
        if stage.strategy == "merge":
            return self.merged_us
        longest = 10.0 * max(len(group) for group in stage.groups)
        return max(longest, 9.0 * sum(len(group) for group in stage.groups))


FACTS = DeviceFacts(merge_groups=((1, 2),), overheads=StageOverheads(0.0))


@pytest.mark.parametrize("planner", ["ios", "lazy-ios"])
def test_the_better_strategy_is_taken(planner: str) -> None:
    cheap = plan(GRAPH, Cost(12.0), PlannerSettings(planner), FACTS)
    dear = plan(GRAPH, Cost(19.0), PlannerSettings(planner), FACTS)

    assert Stage(((1, 2),), "merge", 12.0) in cheap.stages
    assert cheap.predicted_us == pytest.approx(10 + 12 + 10 + 10)
    assert {stage.strategy for stage in dear.stages} == {"concurrent"}
    verify_plan(cheap.plan, GRAPH.predecessors)


def test_a_merge_wins_a_tie() -> None:
    tied = plan(GRAPH, Cost(18.0), PlannerSettings("ios"), FACTS)

    merged = [stage for stage in tied.stages if stage.strategy == "merge"]
    overlapped = [stage for stage in tied.stages if {1, 2} == set(stage.operators)]
    assert merged == overlapped


def test_ios_merge_runs_units_alone_or_merged() -> None:
    cost = Cost(12.0)

    planned = plan(GRAPH, cost, PlannerSettings("ios-merge"), FACTS)

    assert {s.strategy for s in cost.asked if len(s.operators) > 1} == {"merge"}
    assert {s.strategy for s in planned.stages if len(s.operators) > 1} == {"merge"}
    assert planned.predicted_us == pytest.approx(42.0)


def test_ios_parallel_never_merges() -> None:
    cost = Cost(1.0)

    plan(GRAPH, cost, PlannerSettings("ios-parallel"), FACTS)

    assert {stage.strategy for stage in cost.asked} == {"concurrent"}


def test_without_a_rule_ios_merge_is_sequential() -> None:
    planned = plan(GRAPH, Cost(1.0), PlannerSettings("ios-merge"))

    assert planned.predicted_us == pytest.approx(50.0)
    assert planned.plan.streams == 1
