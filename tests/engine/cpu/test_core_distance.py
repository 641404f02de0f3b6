"""Distances between cores, real and given ones, and the teams that they make."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, combinations
from pathlib import Path

import pytest

from braid.core.graph import Operator, OpGraph
from braid.core.plan import Launch, StreamPlan
from braid.core.tensor import TensorType
from braid.engine.cpu.backend import spans_of
from braid.engine.cpu.core_distance import (
    ALL_PAIRS,
    CoreProbe,
    Lanes,
    Pair,
    find_distances,
    measure_round_trips,
    near_groups,
    shared_caches,
)
from braid.engine.cpu.lane_groups import divide, group_sizes, in_groups
from braid.engine.cpu.lanes import lay_out
from braid.engine.cpu.native.find import find_native
from braid.engine.runtime.threads import usable_cpus
from tests.engine.cpu.executors import on_kernels

NEAR_NS, FAR_NS, SOCKET_NS = 45.0, 210.0, 480.0


@dataclass
class Machine:
    """Cores in chiplets of equal size, these in sockets; counts the pairs that are measured."""

    chiplet: int = 8
    socket: int = 64
    asked: list[Pair] = field(default_factory=list)
    is_taken: bool = False  # by other processes: nothing can be told

    def round_trips(self, pairs: Sequence[Pair]) -> Sequence[float | None]:
        self.asked += pairs
        return [None if self.is_taken else self.trip_ns(*pair) for pair in pairs]

    def trip_ns(self, one: int, other: int) -> float:
        wobble = 1 + (one * 7 + other * 7) % 10 / 100
        if one // self.chiplet == other // self.chiplet:
            return NEAR_NS * wobble
        return (FAR_NS if one // self.socket == other // self.socket else SOCKET_NS) * wobble

    def islands(self, cores: Sequence[int]) -> list[Lanes]:
        """As a system that knows its chiplets divides the numbers of cores."""
        chiplets = sorted({core // self.chiplet for core in cores})
        return [
            [lane for lane, core in enumerate(cores) if core // self.chiplet == chiplet]
            for chiplet in chiplets
        ]


def one_island(cores: Sequence[int]) -> list[Lanes]:
    return [range(len(cores))]


def alone(cores: Sequence[int]) -> list[Lanes]:
    return [[lane] for lane in range(len(cores))]


@pytest.mark.parametrize(("trip_ns", "name"), [(45.0, "near"), (64.0, "near"), (370.0, "far")])
def test_two_cores_are_near_or_far_by_their_round_trip(trip_ns: float, name: str) -> None:
    probe = CoreProbe((4, 9), lambda pairs: [trip_ns for _ in pairs])

    state = probe.look()

    assert (state.name, state.distance_ns) == (name, ((0.0, trip_ns), (trip_ns, 0.0)))


def test_round_trips_without_a_gap_are_one_class() -> None:
    mesh = [[0.0 if i == j else 100.0 + 10 * abs(i - j) for j in range(8)] for i in range(8)]

    assert near_groups(mesh) == (tuple(range(8)),)


def test_hyperthreads_do_not_make_the_other_cores_far() -> None:
    # 0 and 1 are threads of one core, 2 and 3 of another
    trips = [[0.0, 12, 48, 48], [12, 0.0, 48, 48], [48, 48, 0.0, 12], [48, 48, 12, 0.0]]

    assert near_groups(trips) == ((0, 1, 2, 3),)


@pytest.mark.parametrize("islands", [None, one_island, alone])
def test_groups_are_chiplets_whatever_the_system_says_of_caches(islands: object) -> None:
    machine = Machine()
    divided = machine.islands if islands is None else islands
    cores = tuple(range(128))

    state = CoreProbe(cores, machine.round_trips, divided).look()  # type: ignore[arg-type]

    assert state.groups == tuple(tuple(range(first, first + 8)) for first in range(0, 128, 8))
    assert state.name.startswith("0-7/8-15/")
    for one, other in combinations(cores, 2):
        assert state.distance_ns[one][other] == state.distance_ns[other][one]
        assert state.distance_ns[one][other] == pytest.approx(machine.trip_ns(one, other), rel=0.1)


def test_of_many_cores_few_pairs_are_measured() -> None:
    machine, cores = Machine(), tuple(range(128))

    find_distances(cores, machine.islands(cores), machine.round_trips)

    assert len(machine.asked) == len({*machine.asked}) == 16 * 15 / 2 + 16 * 7


def test_of_few_cores_all_pairs_are_measured() -> None:
    machine, cores = Machine(chiplet=4), tuple(range(ALL_PAIRS))

    find_distances(cores, one_island(cores), machine.round_trips)

    assert sorted(machine.asked) == sorted(combinations(cores, 2))


def test_a_change_counts_once_two_looks_agree_on_it() -> None:
    answers = iter([45.0, 45.0, 46.0, 370.0, 47.0, 370.0, 371.0])
    probe = CoreProbe((0, 1), lambda pairs: [next(answers)])

    names = [(state.name, state.least_ns) for state in (probe.look() for _ in range(4))]

    # the first look takes two of them; one of 370 ns alone is a slip
    assert names == [("near", 45.0), ("near", 46.0), ("near", 47.0), ("far", 371.0)]


def test_where_nothing_can_be_told_the_last_state_stays() -> None:
    machine = Machine()
    probe = CoreProbe((0, 1), machine.round_trips)
    before = probe.look()
    machine.is_taken = True

    assert before.name == "near"
    assert probe.look() == before
    assert CoreProbe((0, 1), machine.round_trips).look().name == ""


def test_what_takes_too_long_for_a_distance_tells_nothing() -> None:
    answers = iter([45.0, 45.0, *[12_925.0] * 3, 340.0, 340.0])
    probe = CoreProbe((0, 1), lambda pairs: [next(answers)])

    assert [probe.look().name for _ in range(5)] == ["near", "near", "near", "near", "far"]


def test_one_lane_is_near_itself() -> None:
    state = CoreProbe((3,), Machine().round_trips).look()

    assert (state.name, state.least_ns) == ("near", None)


def test_cores_that_share_their_largest_cache_are_an_island(tmp_path: Path) -> None:
    for core, shared in {0: "0-1,4", 1: "0-1,4", 2: "2-3", 3: "2-3", 4: "0-1,4"}.items():
        folder = tmp_path / f"cpu{core}/cache/index3"
        folder.mkdir(parents=True)
        (folder / "shared_cpu_list").write_text(f"{shared}\n")

    assert shared_caches((1, 2, 3, 4), tmp_path) == [[0, 3], [1, 2]]
    assert shared_caches((1, 2, 3), tmp_path / "none") == [[0, 1, 2]]


@pytest.mark.skipif(find_native() is None, reason="needs the part in C")
def test_the_real_round_trips_are_positive_and_symmetric() -> None:
    cores = usable_cpus()[:2]
    if len(cores) < 2:
        pytest.skip("needs two cores")
    one, other = cores
    pauses: list[None] = []

    pairs = [(one, other), (other, one)]
    there, back = measure_round_trips(pairs, lambda: pauses.append(None))

    for trip_ns in (there, back):
        assert trip_ns is None or 1.0 < trip_ns < 1e6  # None: other processes had the cores
    assert pauses
    state = CoreProbe(cores).look()
    if state.distance_ns:
        (zero, there_ns), (back_ns, also_zero) = state.distance_ns
        assert there_ns == back_ns > 0 == zero == also_zero


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
