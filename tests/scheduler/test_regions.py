"""Regions of a graph, and the cheapest path through them, against trying everything."""

import random
from itertools import product

import pytest

from braid.core.graph import Operator, OpGraph
from braid.core.tensor import TensorType
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
