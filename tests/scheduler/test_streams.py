"""Streams, waits and barriers: lowered stages, waves, what may be left out."""

from dataclasses import replace

import pytest

from braid.core.errors import InvalidArtefact
from braid.core.plan import Launch, StreamPlan, verify_plan
from braid.core.schedule import Stage
from braid.scheduler.cost import OperatorLatencies
from braid.scheduler.lowering import lower_stages
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import plan
from braid.scheduler.streams import StreamSchedule, lower_streams, makespan_us, plan_with_events
from tests.scheduler.oracle import graph_of, random_graph


#   s0: 0 ──> 1 ──┐
#   s1:  └─────── 2      2 reads from 0 and 1; that it waits for 1 says it all
def test_a_wait_that_another_wait_implies_is_dropped() -> None:
    plan = plan_with_events([0, 1, 2], {0: 0, 1: 0, 2: 1}, [[], [0], [0, 1]])

    assert plan.launches[2] == Launch(2, 1, waits=(1,))


def test_a_wait_of_an_earlier_unit_of_the_stream_is_not_repeated() -> None:
    plan = plan_with_events([0, 1, 2], {0: 0, 1: 1, 2: 1}, [[], [0], [0]])

    assert [launch.waits for launch in plan.launches] == [(), (0,), ()]


@pytest.mark.parametrize("seed", range(60))
def test_no_wait_can_be_left_out(seed: int) -> None:
    graph, rng = random_graph(seed, max_ops=25)
    stream_of = {unit: rng.randrange(4) for unit in range(len(graph))}

    plan = plan_with_events(range(len(graph)), stream_of, graph.predecessors)

    for position, launch in enumerate(plan.launches):
        for wait in launch.waits:
            fewer = tuple(other for other in launch.waits if other != wait)
            launches = list(plan.launches)
            launches[position] = launch._replace(waits=fewer)
            with pytest.raises(InvalidArtefact):
                verify_plan(replace(plan, launches=tuple(launches)), graph.predecessors)


@pytest.mark.parametrize("seed", range(30))
def test_folded_streams_still_respect_every_edge(seed: int) -> None:
    graph, rng = random_graph(seed, max_ops=40)
    order = tuple(range(len(graph)))
    schedule = StreamSchedule(order, tuple((unit,) for unit in order))

    plan = lower_streams(schedule, graph.predecessors, max_streams=rng.randint(1, 8))

    verify_plan(plan, graph.predecessors)


def test_a_launch_order_that_breaks_an_edge_is_refused() -> None:
    schedule = StreamSchedule((1, 0), ((0,), (1,)))

    with pytest.raises(InvalidArtefact, match="unit 1 waits for 0, launched later"):
        lower_streams(schedule, [[], [0]], max_streams=8)


#   s0: 0 (5) ────────> 2 (1)      2 waits for 1 and for its stream
#   s1: 1 (2) ───────────┘         3 starts after the barrier
def test_makespan_counts_streams_waits_and_barriers() -> None:
    launches = (Launch(0, 0), Launch(1, 1), Launch(2, 0, (1,)), Launch(3, 1))

    free = StreamPlan(launches, streams=2)
    joined = StreamPlan(launches, streams=2, barriers=(3,))

    assert makespan_us(free, [5.0, 2.0, 1.0, 4.0]) == 6.0
    assert makespan_us(joined, [5.0, 2.0, 1.0, 4.0]) == 10.0


#   0 ─┬─> 1 ─> 2 ─┬─> 4
#      └─> 3 ──────┘
EDGES = [[], [0], [1], [0], [2, 3]]


def test_the_longest_group_runs_on_stream_0_between_barriers() -> None:
    plan = lower_stages([Stage(((0,),)), Stage(((3,), (1, 2))), Stage(((4,),))], EDGES)

    assert plan.launches == (Launch(0, 0), Launch(1, 0), Launch(2, 0), Launch(3, 1), Launch(4, 0))
    assert plan.barriers == (1, 4)


def test_length_is_latency_where_it_is_known() -> None:
    latency = [1.0, 1.0, 1.0, 9.0, 1.0]

    plan = lower_stages([Stage(((0,),)), Stage(((1, 2), (3,))), Stage(((4,),))], EDGES, latency)

    assert plan.launches[1] == Launch(3, 0)


def test_stages_of_one_group_need_no_barrier_between_them() -> None:
    plan = lower_stages([Stage(((unit,),)) for unit in range(5)], EDGES)

    assert plan.barriers == ()
    assert plan.streams == 1


def test_more_groups_than_streams_share_the_least_loaded_stream() -> None:
    plan = lower_stages([Stage(tuple((unit,) for unit in range(20)))], [[]] * 20)

    loads = [[launch.stream for launch in plan.launches].count(number) for number in range(8)]
    assert sorted(loads) == [2, 2, 2, 2, 3, 3, 3, 3]


def test_stages_that_break_an_edge_are_refused() -> None:
    with pytest.raises(InvalidArtefact, match="unit 1 reads from 0"):
        lower_stages([Stage(((1,), (0,)))], [[], [0]])


#   0 ─┬─> 2 ─> 4
#   1 ─┴─> 3
GRAPH = graph_of([[], [], [0, 1], [1], [2]])
COST = OperatorLatencies([1.0, 2.0, 3.0, 4.0, 5.0])


def test_greedy_runs_all_that_is_ready() -> None:
    planned = plan(GRAPH, COST, PlannerSettings("greedy"))

    assert [stage.groups for stage in planned.stages] == [((0,), (1,)), ((2,), (3,)), ((4,),)]


def test_rammer_deals_a_wave_to_the_streams_there_are() -> None:
    wave = graph_of([[]] * 5)

    planned = plan(wave, COST, PlannerSettings("rammer", max_streams=2))

    assert planned.stages[0].groups == ((0, 2, 4), (1, 3))
