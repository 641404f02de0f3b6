"""Regions and branches of graphs, and the cheapest path through them."""

import random
from itertools import product

import pytest

from braid.core.graph import Operator, OpGraph
from braid.core.tensor import TensorType
from braid.scheduler.branches import balanced, find_branches
from braid.scheduler.problem import borders
from braid.scheduler.regions import (
    LEAST_WORK,
    MOST_REGIONS,
    Choice,
    cheapest,
    least_of_one,
    regions,
    runs_of,
)

SPEC = TensorType("FP32", (1, 4))
CHOICES = [Choice("", 2), Choice("a", 1), Choice("a", 2), Choice("b", 2)]


def drawn(reads: dict[str, str], kinds: dict[str, str] | None = None) -> OpGraph:
    """A graph of units that are named as what they make; its last unit makes the output."""
    units = tuple(
        Operator(name, (kinds or {}).get(name, "aten.relu"), tuple(inputs.split()), (name,))
        for name, inputs in reads.items()
    )
    last = units[-1].name
    return OpGraph("drawn", {"x": SPEC}, {"y": last}, {}, units, dict.fromkeys(reads, SPEC))


#   x ─> a ─> b ─> d ─> e ─> f        c crosses beside b; x is an input, at hand everywhere
#        └──> c ───┘         x ─┘
def test_a_graph_is_cut_where_few_values_cross_that_the_file_knows() -> None:
    graph = drawn({"a": "x", "b": "a", "c": "a", "d": "b c", "e": "d", "f": "e x"})

    assert borders(graph, "abcdef", most=1).keys() == {1, 4, 5}
    assert borders(graph, "abcdef", most=2).keys() == {1, 2, 3, 4, 5}
    assert borders(graph, "abcef", most=2).keys() == {1, 2, 3, 5}


def test_regions_part_where_the_kinds_of_units_change() -> None:
    kinds = dict.fromkeys("abcd", "aten.convolution") | dict.fromkeys("efgh", "aten.linear")
    names = "abcdefgh"
    graph = drawn(dict(zip(names, "x" + names[:-1], strict=True)), kinds)

    parts = regions(graph, dict.fromkeys(range(1, 8), 0), [3e3, 3e3, 3e3, 3e3, 1e3, 1e3, 1e3, 1e3])
    whole = regions(
        graph, dict.fromkeys(range(1, 8), 1 << 30), [3e3, 3e3, 3e3, 3e3, 1e3, 1e3, 1e3, 1e3]
    )

    assert 4 in {part.start for part in parts}
    assert len(parts) <= MOST_REGIONS
    assert whole == [range(8)], "what crosses costs more than all work"
    assert [unit for part in parts for unit in part] == list(range(8))


@pytest.mark.parametrize("seed", range(30))
def test_no_region_is_small_and_none_is_lost(seed: int) -> None:
    draw = random.Random(seed)
    names = [f"u{at}" for at in range(draw.randint(1, 40))]
    work_us = [draw.choice([0.0, 1e3, 1e4]) for _ in names]
    graph = drawn(dict(zip(names, ["x", *names], strict=False)))
    at = dict.fromkeys(draw.sample(range(len(names) + 1), draw.randint(0, len(names))), 0)

    parts = regions(graph, at, work_us)

    assert [unit for part in parts for unit in part] == list(range(len(names)))
    least = LEAST_WORK * sum(work_us) * (1 - 1e-9)
    assert all(sum(work_us[unit] for unit in part) >= least for part in parts)
    assert {part.start for part in parts} <= {0, *at}


@pytest.mark.parametrize("seed", range(100))
def test_the_path_is_as_cheap_as_the_best_of_all(seed: int) -> None:
    draw = random.Random(seed)
    costs = [
        {choice: draw.uniform(1, 10) for choice in draw.sample(CHOICES, draw.randint(1, 4))}
        for _ in range(draw.randint(1, 5))
    ]
    prices = {
        (at, one, other): draw.uniform(-2, 4)
        for at in range(1, len(costs))
        for one, other in product(CHOICES, repeat=2)
    }

    def cost_us(path: tuple[Choice, ...]) -> float:
        own = sum(us[choice] for us, choice in zip(costs, path, strict=True))
        return own + sum(prices[at, path[at - 1], path[at]] for at in range(1, len(path)))

    def border_us(at: int, one: Choice, other: Choice) -> float:
        return prices[at, one, other]

    path, least_us = cheapest(costs, border_us)

    every = [cost_us(candidate) for candidate in product(*costs)]
    assert least_us == pytest.approx(min(every)) == pytest.approx(cost_us(tuple(path)))
    alike = [cost_us((one,) * len(costs)) for one in CHOICES if all(one in us for us in costs)]
    assert least_of_one(costs, border_us) == pytest.approx(min(alike, default=float("inf")))


def test_regions_of_one_engine_that_follow_on_each_other_become_one_part() -> None:
    own, one, both, _ = CHOICES

    parts = [range(2), range(2, 3), range(3, 7), range(7, 9)]
    path = [own, both, both, one]
    costs = [{own: 1.0}, {own: 9.0, both: 2.0}, {both: 3.0}, {one: 4.0}]

    def border_us(_: int, before: Choice, after: Choice) -> float:
        return -0.5 if before == after else 10.0

    assert runs_of(parts, path, costs, border_us) == [
        (range(2), own, 1.0),
        (range(2, 7), both, 10.0 + 2.0 - 0.5 + 3.0),
        (range(7, 9), one, 10.0 + 4.0),
    ]


def graph(*reads: list[int]) -> OpGraph:
    """A graph whose unit i reads from these units, or from the input where it reads from none."""
    units = tuple(
        Operator(f"u{at}", "aten.add", tuple(f"u{r}" for r in some) or ("x",), (f"u{at}",))
        for at, some in enumerate(reads)
    )
    specs = {unit.name: SPEC for unit in units}
    return OpGraph("drawn", {"x": SPEC}, {"y": units[-1].name}, {}, units, specs)


def test_networks_in_one_file_are_branches() -> None:
    #   x ─> 0 ─> 2 ─> 4        x ─> 1 ─> 3
    found = find_branches(graph([], [], [0], [1], [2]), (), [1.0] * 5, 2)

    assert found is not None
    assert found.members == ((0, 2, 4), (1, 3))


def test_what_comes_before_a_fork_and_after_a_join_is_left_out() -> None:
    #   0 ─> 1 ─┬─> 2 ─> 4 ─┬─> 6
    #           └─> 3 ─> 5 ─┘
    forked = graph([], [0], [1], [1], [2], [3], [4, 5])

    found = find_branches(forked, range(1, 7), [1.0] * 7, 2)

    assert found is not None
    assert found.span == range(2, 6)
    assert found.members == ((2, 4), (3, 5))
    assert find_branches(forked, range(1, 7), [9.0, 9.0, 1, 1, 1, 1, 1], 2) is None


def test_a_chain_has_none() -> None:
    assert find_branches(graph([], [0], [1], [2]), range(1, 4), [1.0] * 4, 2) is None


@pytest.mark.parametrize("seed", range(50))
def test_branches_share_no_edge_and_gain_what_trying_every_row_gains(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(2, 12)
    reads = [
        sorted(draw.sample(range(at), min(at, draw.choice([0, 1, 1, 2])))) for at in range(count)
    ]
    work_us = [draw.uniform(1, 10) for _ in range(count)]

    found = find_branches(graph(*reads), range(count), work_us, 2)

    gains = [
        gain(branches_of(range(start, stop), reads), work_us)
        for start in range(count)
        for stop in range(start + 1, count + 1)
    ]
    if found is None:
        assert max(gains) <= 0.15 * sum(work_us) + 1e-9
        return
    assert sorted(unit for units in found.members for unit in units) == list(found.span)
    assert sorted(found.members) == branches_of(found.span, reads)
    assert gain(list(found.members), work_us) == pytest.approx(max(gains), abs=0.002)


def branches_of(span: range, reads: list[list[int]]) -> list[tuple[int, ...]]:
    """Connected parts of a row of units, by spreading over edges until nothing changes."""
    mark = {unit: unit for unit in span}
    for _ in span:
        for unit in span:
            for other in set(reads[unit]) & set(span):
                mark[unit] = mark[other] = min(mark[unit], mark[other])
    return sorted(tuple(unit for unit in span if mark[unit] == root) for root in {*mark.values()})


def gain(branches: list[tuple[int, ...]], work_us: list[float]) -> float:
    loads = [sum(work_us[unit] for unit in units) for units in branches]
    return sum(loads) - max(balanced(loads, 2)[1])


def test_the_longest_works_go_to_the_emptiest_lanes() -> None:
    assert balanced([1.0, 5.0, 4.0, 1.0], 2) == ([[1, 3], [0, 2]], [6.0, 5.0])
    assert balanced([2.0], 4) == ([[0]], [2.0])
