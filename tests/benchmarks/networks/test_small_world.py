import random

import networkx
import pytest

from benchmarks.networks.randwire import RandomStage, small_world


@pytest.mark.parametrize("seed", range(50))
def test_draws_the_graph_that_networkx_draws(seed: int) -> None:
    nodes, degree = random.Random(seed).choice([(8, 2), (16, 4), (32, 4), (6, 4)])
    oracle = networkx.connected_watts_strogatz_graph(
        nodes, degree, 0.75, tries=1000, seed=random.Random(seed)
    )

    edges = small_world(nodes, degree, 0.75, random.Random(seed))

    assert edges == sorted((min(e), max(e)) for e in oracle.edges)


def test_nearly_complete_graphs_do_not_loop_forever() -> None:
    edges = small_world(5, 4, 1.0, random.Random(0))
    assert len(edges) == 10


#   0 ──> 1 ──> 3      2 and 3 have no successor
#    └──> 2
def test_a_stage_reads_its_input_once_and_averages_what_nothing_reads() -> None:
    stage = RandomStage([(0, 1), (0, 2), (1, 3)], nodes=4, inputs=2, outputs=4)

    assert stage.predecessors == [[], [0], [0], [1]]
    assert stage.last == [2, 3]
    assert [node.depthwise.stride for node in stage.nodes] == [(2, 2), (1, 1), (1, 1), (1, 1)]
