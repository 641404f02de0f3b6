"""Branches of drawn graphs."""

import random

import pytest

from braid.core.graph import Operator, OpGraph
from braid.core.tensor import TensorType
from braid.scheduler.branches import balanced, find_branches

SPEC = TensorType("FP32", (1, 4))


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
