"""Teams on machines of many cores, by matrices of distances that no machine here has."""

import random
from itertools import accumulate

import pytest

from braid.core.graph import Operator, OpGraph
from braid.core.plan import Launch, StreamPlan
from braid.core.tensor import TensorType
from braid.engine.cpu.backend import spans_of
from braid.engine.cpu.core_distance import near_groups
from braid.engine.cpu.lane_groups import divide, group_sizes, in_groups
from braid.engine.cpu.lanes import lay_out
from tests.engine.cpu.executors import on_kernels

MACHINES = {8: (4, 8), 64: (8, 32), 128: (8, 64)}
"""Lanes -> lanes of a chiplet, and of a socket."""


def matrix(lanes: int) -> list[list[float]]:
    chiplet, socket = MACHINES[lanes]

    def trip_ns(one: int, other: int) -> float:
        if one == other:
            return 0.0
        if one // chiplet == other // chiplet:
            return 48.0
        return 210.0 if one // socket == other // socket else 480.0

    return [[trip_ns(one, other) for other in range(lanes)] for one in range(lanes)]


@pytest.fixture(params=MACHINES)
def lanes(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def spans(threads: tuple[int, ...]) -> list[range]:
    ends = [0, *accumulate(threads)]
    return [range(first, first + count) for first, count in zip(ends, threads, strict=False)]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_no_team_crosses_a_group_while_it_fits_into_one(lanes: int, count: int, seed: int) -> None:
    groups = near_groups(matrix(lanes))
    load = [random.Random(seed + lane).uniform(1.0, 9.0) for lane in range(count)]

    order, threads = divide(load, group_sizes(groups, lanes))

    assert sorted(order) == list(range(count))
    assert sum(threads) == lanes
    assert min(threads) >= 1
    for team in spans(threads):
        inside = [group for group in groups if set(group) & set(team)]
        is_within_one = len(inside) == 1
        has_whole_groups = set(team) == {thread for group in inside for thread in group}
        assert is_within_one or has_whole_groups


@pytest.mark.parametrize("count", [2, 4, 8])
def test_branches_of_one_size_are_spread_evenly_over_the_groups(lanes: int, count: int) -> None:
    groups = near_groups(matrix(lanes))

    _, threads = divide([1.0] * count, group_sizes(groups, lanes))

    assert set(threads) == {lanes // count}


def test_runs_side_by_side_are_spread_evenly_over_the_groups(lanes: int) -> None:
    groups = near_groups(matrix(lanes))

    for count in (count for count in range(2, lanes + 1) if lanes % count == 0):
        places = [set(span) for span in spans_of(lanes, count)]

        assert {len(place) for place in places} == {lanes // count}
        for place in places:
            inside = [set(group) for group in groups if set(group) & place]
            assert place <= inside[0] or place == set().union(*inside)


def test_a_plan_s_branches_lie_in_different_groups_of_near_lanes(lanes: int) -> None:
    spec = TensorType("FP32", (1, 64, 56, 56))
    graph = OpGraph(
        "two", {"x": spec}, {"a": "a", "b": "b"}, {},
        tuple(Operator(name, "aten.relu", ("x",), (name,)) for name in "ab"),
        {"a": spec, "b": spec},
    )  # fmt: skip
    program = on_kernels(graph, {})
    plan = StreamPlan((Launch(0, 0), Launch(1, 1)), streams=2)

    (segment,) = lay_out(program, plan, lanes, groups=near_groups(matrix(lanes)))

    assert segment.threads == (lanes // 2, lanes // 2)


def test_a_lane_with_more_work_has_more_of_the_threads_of_its_group() -> None:
    assert divide([6.0, 1.0, 1.0], [4]) == ([0, 1, 2], (2, 1, 1))
    assert divide([6.0, 2.0, 5.0, 3.0], [4, 4]) == ([0, 1, 2, 3], (3, 1, 2, 2))
    assert divide([9.0, 1.0], [2, 2, 2, 2]) == ([0, 1], (6, 2))


def test_lanes_that_do_not_follow_one_another_are_one_group() -> None:
    assert group_sizes([(0, 2), (1, 3)], 4) == [4]
    assert group_sizes([], 4) == [4]
    assert group_sizes([(0, 1), (2, 3)], 4) == [2, 2]


def test_cores_of_a_cache_follow_one_another() -> None:
    assert in_groups((0, 1, 2, 3), [(0, 2), (1, 3)]) == (0, 2, 1, 3)
    assert in_groups((5, 9), [(0, 1)]) == (5, 9)
