import pytest

from braid.scheduler.blocks import split_blocks
from braid.scheduler.dag import Dag
from braid.scheduler.options import PlannerSettings
from braid.scheduler.units import UnitGraph
from tests.scheduler.oracle import graph_of, random_graph


#   0 ─> 1 ─┬─> 2 ─> 4 ─> 5
#           └─> 3 ───┘
def test_splits_where_nothing_could_run_beside_the_last_unit() -> None:
    graph = graph_of([[], [0], [1], [1], [2, 3], [4]])

    assert split_blocks(graph, 40) == [(0,), (1,), (2, 3, 4), (5,)]


def cells(count: int, branches: int) -> UnitGraph:
    """NASNet in small: each cell reads the two cells before it, so no unit is a narrow cut."""
    edges: list[list[int]] = [[], []]
    ends = [0, 1]
    for _ in range(count):
        first = len(edges)
        for branch in range(branches):
            edges.append([ends[-1 - branch % 2]])
            edges.append([len(edges) - 1])
        edges.append(list(range(first + 1, len(edges), 2)))
        ends.append(len(edges) - 1)
    return graph_of(edges)


def test_cells_that_read_two_predecessors_are_split_where_two_tensors_are_live() -> None:
    graph = cells(count=6, branches=3)  # 2 stems, then 7 units a cell

    blocks = split_blocks(graph, 10)

    later = [block[0] for block in blocks[1:]]
    live = [
        {p for v in range(cut, len(graph)) for p in graph.predecessors[v] if p < cut}
        for cut in later
    ]
    assert all(len(block) <= 10 for block in blocks)
    assert all(len(values) <= 2 for values in live)


@pytest.mark.parametrize("seed", range(40))
def test_blocks_cover_the_graph_in_order_within_the_limit(seed: int) -> None:
    graph, rng = random_graph(seed, max_ops=60)
    limit = rng.choice([1, 5, 12, 40])

    blocks = split_blocks(graph, limit)

    assert [unit for block in blocks for unit in block] == list(range(len(graph)))
    assert max(map(len, blocks)) <= limit


@pytest.mark.parametrize("seed", range(40))
def test_a_narrow_cut_separates_only_ordered_pairs(seed: int) -> None:
    graph, _ = random_graph(seed, max_ops=12)
    dag = Dag.of(graph.predecessors)

    blocks = split_blocks(graph, 12)

    for block in blocks[:-1]:
        last = block[-1]
        assert dag.ancestors[last] | dag.descendants[last] | 1 << last == dag.everything


def test_wide_blocks_are_split_before_the_search_explodes() -> None:
    wide = graph_of([[]] + [[0]] * 35 + [list(range(1, 36))])

    assert max(map(len, split_blocks(wide, 40))) < 20


def test_without_a_limit_the_graph_is_one_block() -> None:
    chain = graph_of([[], [0], [1]])

    assert split_blocks(chain, PlannerSettings("ios", max_block_ops=None).max_block_ops) == [
        (0, 1, 2)
    ]
