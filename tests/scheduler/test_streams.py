"""Streams, waits and barriers; Opara and Nimble against the Opara paper and networkx."""

from dataclasses import replace

import networkx as nx
import pytest

from benchmarks.structures import googlenet
from braid.core.errors import InvalidArtefact
from braid.core.measurement import DeviceFacts, UnitProfile
from braid.core.plan import Launch, StreamPlan, verify_plan
from braid.core.schedule import Stage
from braid.scheduler.cost import OperatorLatencies
from braid.scheduler.dag import bits
from braid.scheduler.lowering import lower_stages
from braid.scheduler.matching import maximum_matching
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import plan
from braid.scheduler.stream_planners import (
    allocate_streams,
    join_chains,
    launch_order,
    match_chains,
    minimum_equivalent_graph,
)
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


GOOGLENET = googlenet().units.predecessors


def test_googlenet_gives_opara_28_streams_and_nimble_4() -> None:
    chains = match_chains(GOOGLENET)

    assert len(allocate_streams(GOOGLENET)) == 28
    assert len(chains) == 28
    assert len(join_chains(chains, GOOGLENET)) == 4


def test_more_streams_than_the_device_takes_are_folded() -> None:
    graph = googlenet().units
    cost = OperatorLatencies([1.0] * len(graph))

    planned = plan(graph, cost, PlannerSettings("opara"))

    assert planned.streams is not None
    assert len(planned.streams.streams) == 28
    assert planned.plan.streams == 8


#   0 ─┬─> 1 ─> 3      opara: 1 inherits the stream of 0, which has then passed it on; 2 opens one
#      └─> 2
def test_opara_passes_each_stream_on_once() -> None:
    assert allocate_streams([[], [0], [0], [1]]) == ((0, 1, 3), (2,))


def test_opara_takes_turns_between_the_lists_and_takes_the_least_demand_first() -> None:
    profiles = [
        UnitProfile(demand=5, memory_bound=True),
        UnitProfile(demand=1, memory_bound=True),
        UnitProfile(demand=9, memory_bound=False),
        UnitProfile(demand=7, memory_bound=False),
        UnitProfile(demand=8, memory_bound=False),
    ]

    assert launch_order([[], [], [], [], []], profiles) == (1, 3, 0, 4, 2)


def test_opara_launches_a_unit_only_after_what_it_reads() -> None:
    profiles = [UnitProfile(demand=9), UnitProfile(demand=1), UnitProfile(demand=2)]

    assert launch_order([[], [0], []], profiles) == (2, 0, 1)


def test_the_profile_of_the_engine_decides() -> None:
    graph = graph_of([[], []])
    facts = DeviceFacts(profiles=(UnitProfile(demand=2), UnitProfile(demand=1)))

    planned = plan(graph, OperatorLatencies([1.0, 1.0]), PlannerSettings("opara"), facts)

    assert planned.streams is not None
    assert planned.streams.launch_order == (1, 0)


@pytest.mark.parametrize("seed", range(40))
def test_the_minimum_equivalent_graph_is_the_transitive_reduction(seed: int) -> None:
    graph, _ = random_graph(seed, max_ops=15)
    edges = [(p, v) for v, row in enumerate(graph.predecessors) for p in row]
    reference = nx.DiGraph(edges)
    reference.add_nodes_from(range(len(graph)))

    reduced = minimum_equivalent_graph(graph.predecessors)

    ours = {(u, v) for u, after in enumerate(reduced) for v in bits(after)}
    assert ours == set(nx.transitive_reduction(reference).edges)


@pytest.mark.parametrize("seed", range(40))
def test_matchings_are_as_large_as_those_of_networkx(seed: int) -> None:
    graph, _ = random_graph(seed, max_ops=20)
    edges = [sum(1 << p for p in row) for row in graph.predecessors]
    reference = nx.Graph()
    reference.add_nodes_from(("left", v) for v in range(len(graph)))
    reference.add_edges_from(
        (("left", v), ("right", p)) for v, row in enumerate(graph.predecessors) for p in row
    )
    left = [("left", v) for v in range(len(graph))]

    matching = maximum_matching(edges)

    assert len(set(matching.values())) == len(matching)
    assert all(edges[v] >> p & 1 for v, p in matching.items())
    assert 2 * len(matching) == len(nx.bipartite.hopcroft_karp_matching(reference, left))


@pytest.mark.parametrize("seed", range(40))
def test_nimble_needs_no_more_streams_than_the_graph_is_wide(seed: int) -> None:
    graph, _ = random_graph(seed, max_ops=15)

    chains = match_chains(graph.predecessors)
    streams = join_chains(chains, graph.predecessors)

    assert sorted(unit for stream in streams for unit in stream) == list(range(len(graph)))
    assert len(streams) <= len(chains)
