"""Opara and Nimble against the numbers of the Opara paper, and against networkx."""

import networkx as nx
import pytest

from benchmarks.structures import googlenet
from braid.core.measurement import DeviceFacts, UnitProfile
from braid.scheduler.cost import OperatorLatencies
from braid.scheduler.dag import bits
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
from tests.scheduler.oracle import graph_of, random_graph

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
