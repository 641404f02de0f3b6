from __future__ import annotations

import pytest

from braid.core.errors import InvalidArtefact
from braid.core.plan import Launch
from braid.core.schedule import Stage
from braid.scheduler.lowering import lower_stages

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
