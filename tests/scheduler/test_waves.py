from __future__ import annotations

from braid.scheduler.cost import OperatorLatencies
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import plan
from tests.scheduler.oracle import graph_of

#   0 ─┬─> 2 ─> 4
#   1 ─┴─> 3
GRAPH = graph_of([[], [], [0, 1], [1], [2]])
COST = OperatorLatencies([1.0, 2.0, 3.0, 4.0, 5.0])


def test_greedy_runs_all_that_is_ready() -> None:
    planned = plan(GRAPH, COST, PlannerSettings("greedy"))

    assert [stage.groups for stage in planned.stages] == [
        ((0,), (1,)),
        ((2,), (3,)),
        ((4,),),
    ]


def test_rammer_deals_a_wave_to_the_streams_there_are() -> None:
    wave = graph_of([[]] * 5)

    planned = plan(wave, COST, PlannerSettings("rammer", max_streams=2))

    assert planned.stages[0].groups == ((0, 2, 4), (1, 3))
