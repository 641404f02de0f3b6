"""Exact schedules, against all others and against their bounds."""

import random

import pytest

from benchmarks.structures import googlenet
from benchmarks.synthetic import DEVICES, SyntheticDevice
from braid.core.measurement import DeviceFacts
from braid.core.plan import verify_plan
from braid.core.schedule import Stage
from braid.scheduler.bounds import LatencyBounds
from braid.scheduler.cost import OperatorLatencies
from braid.scheduler.dag import Dag, bits
from braid.scheduler.endings import Endings, Pruning
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import plan, stages_to_measure
from tests.scheduler.oracle import RandomCost, best_latency, graph_of, random_graph

ONE_BLOCK = PlannerSettings("ios", max_block_ops=None)

#   0 ──> 1 ──> 3      1 and 2 are independent
#    └──> 2 ──┘
DIAMOND = graph_of([[], [0], [0], [1, 2]])


def test_independent_branches_overlap() -> None:
    cost = OperatorLatencies([1.0, 5.0, 4.0, 1.0], group_overhead_us=0.1)

    planned = plan(DIAMOND, cost, PlannerSettings("ios", max_group_ops=1))

    assert [stage.groups for stage in planned.stages] == [((0,),), ((1,), (2,)), ((3,),)]
    assert planned.predicted_us == pytest.approx(7.1)


def test_overlap_that_costs_more_than_it_saves_is_left_alone() -> None:
    cost = OperatorLatencies([1.0, 5.0, 4.0, 1.0], group_overhead_us=4.5)

    planned = plan(DIAMOND, cost, PlannerSettings("ios"))

    assert {len(stage.groups) for stage in planned.stages} == {1}
    assert planned.predicted_us == pytest.approx(11.0)


@pytest.mark.parametrize("seed", range(200))
def test_agrees_with_trying_every_schedule(seed: int) -> None:
    graph, rng = random_graph(seed, max_ops=7)
    cost = RandomCost(seed)
    edges = [list(row) for row in graph.predecessors]
    r, s = rng.choice([(3, 8), (2, 2), (1, 3), (7, 7)])

    planned = plan(
        graph, cost, PlannerSettings("ios", max_group_ops=r, max_groups=s, max_block_ops=None)
    )

    assert planned.predicted_us == pytest.approx(best_latency(edges, cost, r, s))
    verify_plan(planned.plan, graph.predecessors)


@pytest.mark.parametrize("seed", range(50))
def test_asks_exactly_the_stages_it_announced(seed: int) -> None:
    graph, _ = random_graph(seed, max_ops=9)
    cost = RandomCost(seed)

    announced = stages_to_measure(graph, ONE_BLOCK)
    plan(graph, cost, ONE_BLOCK)

    assert {stage.groups for stage in cost.asked} == {stage.groups for stage in announced}
    assert len(cost.asked) == len(announced)


def test_a_graph_without_units_needs_no_stage() -> None:
    planned = plan(graph_of([]), OperatorLatencies([]), PlannerSettings("ios"))

    assert planned.stages == ()
    assert planned.plan.launches == ()


STRUCTURE = googlenet()
MODULE = tuple(range(5, 12))  # the first inception module


@pytest.mark.parametrize("name", sorted(DEVICES))
@pytest.mark.parametrize("seed", range(3))
def test_no_stage_is_faster_than_its_bound(name: str, seed: int) -> None:
    device = SyntheticDevice(DEVICES[name], STRUCTURE.units, STRUCTURE.loads, seed)
    endings = Endings(Dag.of(STRUCTURE.units.restrict(MODULE).predecessors), Pruning())
    alone_us = [device.stage_latency_us(Stage(((unit,),))) for unit in MODULE]
    bounds = LatencyBounds(alone_us, MODULE, device.facts)
    blind = LatencyBounds(alone_us, MODULE, DeviceFacts())
    rng = random.Random(seed)

    tight = 0
    for state in list(endings.states)[1:]:
        for ending in rng.sample(endings.of(state), min(20, len(endings.of(state)))):
            groups = endings.groups(ending)
            named = tuple(tuple(MODULE[unit] for unit in bits(group)) for group in groups)
            latency = device.stage_latency_us(Stage(named))
            learnt = bounds.from_sub_stages(ending, len(groups), 0)
            bound = max(bounds.of(("concurrent", groups)), learnt)
            assert bound <= latency * (1 + 1e-3)  # sharing may shift units: nearly monotone
            assert blind.of(("concurrent", groups)) <= latency * (1 + 1e-9)
            bounds.learn(ending, len(groups), latency)
            tight += bound > 0.9 * latency
    assert tight > 0


def test_a_merged_kernel_is_bounded_by_its_slowest_unit() -> None:
    bounds = LatencyBounds([3.0, 5.0], (0, 1), DeviceFacts())

    assert bounds.of(("merge", (0b11,))) == 5.0
