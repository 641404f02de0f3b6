"""IOS, Table 1."""

import pytest

from braid.scheduler.cost import OperatorLatencies
from braid.scheduler.dag import Dag
from braid.scheduler.matching import width
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import count_schedules, plan
from braid.scheduler.units import UnitGraph
from tests.scheduler.networks import paper_block
from tests.scheduler.oracle import every_schedule, random_graph

TEXT = PlannerSettings("ios", max_group_ops=None, max_groups=None, max_block_ops=None)
AUTHORS_CODE = PlannerSettings(
    "ios", max_group_ops=None, max_groups=None, single_root=True, max_block_ops=None
)


def measure(graph: UnitGraph, options: PlannerSettings) -> tuple[int, int, int, int]:
    """n, d, #(S, E), #schedules."""
    counts = plan(graph, OperatorLatencies([1.0] * len(graph)), options).counts
    return counts.operators, counts.width, counts.transitions, count_schedules(graph, options)


@pytest.mark.parametrize(
    ("network", "index", "expected"),
    [
        ("inception_v3", 10, (11, 6, 4_871, 3_757_392)),
        ("squeezenet", 1, (6, 3, 51, 131)),
        ("nasnet_large", 3, (18, 8, 307_841, 7_150_961_274_600)),  # 3.1e5, 7.2e12
        ("randwire_large", 3, (33, 8, 1_170_663, 91_973_106_270_886_052_032_664)),  # 1.2e6, 9.2e22
    ],
)
def test_the_paper_graphs_give_the_printed_table(
    network: str, index: int, expected: tuple[int, ...]
) -> None:
    assert measure(paper_block(network, index), AUTHORS_CODE) == expected


@pytest.mark.parametrize("seed", range(40))
def test_schedules_are_counted_as_if_listed(seed: int) -> None:
    graph, rng = random_graph(seed, max_ops=6)
    edges = [list(row) for row in graph.predecessors]
    r, s = rng.choice([(3, 8), (2, 2), (1, 3), (6, 6)])
    options = PlannerSettings("ios", max_group_ops=r, max_groups=s, max_block_ops=None)

    assert count_schedules(graph, options) == sum(1 for _ in every_schedule(edges, r, s))


@pytest.mark.parametrize("seed", range(40))
def test_width_is_the_largest_set_of_unordered_units(seed: int) -> None:
    graph, _ = random_graph(seed, max_ops=10)
    dag = Dag.of(graph.predecessors)

    largest = max(
        mask.bit_count()
        for mask in range(1 << len(dag))
        if all(not (dag.descendants[u] & mask) for u in range(len(dag)) if mask >> u & 1)
    )

    assert width(dag) == largest
