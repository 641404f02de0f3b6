"""The worked example of LIOS: figure 3, Table III, figure 6."""

import pytest

from braid.scheduler.cost import OperatorLatencies
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import plan
from braid.scheduler.stream_planners import Placement, place
from tests.scheduler.oracle import graph_of

#   v1 ─┬─> v2 ─┬─> v6 ──┐
#       ├─> v3 ─┘        │
#       ├─> v4 ─> v7 ────┼─> v9 ─> v10        12 edges; unit i is v(i + 1)
#       └─> v5 ─> v8 ────┘
EDGES = [[], [0], [0], [0], [0], [1, 2], [3], [4], [5, 6, 7], [8]]

# v6 takes 15: the printed 5 contradicts the sum of 73 and the row after it.
LATENCY_US = [3.0, 5.0, 5.0, 5.0, 8.0, 15.0, 10.0, 7.0, 13.0, 2.0]

TABLE_III = [  # unit, stream, start, finish; step by step
    (1, 1, 0, 3),
    (5, 1, 3, 11),
    (8, 1, 11, 18),
    (2, 2, 3, 8),
    (3, 3, 3, 8),
    (6, 2, 8, 23),
    (4, 3, 8, 13),
    (7, 3, 13, 23),
    (9, 1, 23, 36),
    (10, 1, 36, 38),
]


def test_the_example_is_scheduled_step_by_step_as_printed() -> None:
    placed = place(LATENCY_US, EDGES, streams=3)

    assert placed == [
        Placement(unit - 1, stream - 1, start, finish) for unit, stream, start, finish in TABLE_III
    ]


def test_the_example_takes_38_instead_of_73() -> None:
    graph = graph_of(EDGES)

    planned = plan(graph, OperatorLatencies(LATENCY_US), PlannerSettings("lios", max_streams=3))

    assert sum(LATENCY_US) == 73
    assert planned.predicted_us == pytest.approx(38)
    assert planned.plan.streams == 3
