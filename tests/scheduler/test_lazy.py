import time
from collections.abc import Sequence
from itertools import count

import pytest

from braid.core.measurement import DeviceFacts, StageOverheads
from braid.core.plan import verify_plan
from braid.core.schedule import Stage
from braid.scheduler.cost import OperatorLatencies
from braid.scheduler.options import PlannerSettings
from braid.scheduler.planners import plan
from tests.scheduler.networks import INCEPTION_E
from tests.scheduler.oracle import MonotoneCost, best_latency, graph_of, random_graph

SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= 60)) for seed in range(500)]


@pytest.mark.parametrize("seed", SEEDS)
def test_ios_lazy_ios_and_brute_force_agree(seed: int) -> None:
    graph, rng = random_graph(seed, max_ops=8)
    r, s = rng.choice([(3, 8), (2, 2), (1, 3), (8, 8)])
    limits = PlannerSettings("lazy-ios", r, s, max_block_ops=None)
    lazy_cost, full_cost = MonotoneCost(seed), MonotoneCost(seed)

    lazy = plan(graph, lazy_cost, limits, lazy_cost.facts(len(graph)))
    full = plan(graph, full_cost, PlannerSettings("ios", r, s, max_block_ops=None))

    edges = [list(row) for row in graph.predecessors]
    assert full.predicted_us == pytest.approx(best_latency(edges, full_cost, r, s))
    assert lazy.predicted_us == pytest.approx(full.predicted_us)
    assert lazy.gap == pytest.approx(0.0, abs=1e-9)
    assert len(lazy_cost.asked) <= len(full_cost.asked)
    verify_plan(lazy.plan, graph.predecessors)


@pytest.mark.parametrize("seed", range(30))
def test_without_any_facts_the_optimum_is_the_same(seed: int) -> None:
    graph, _ = random_graph(seed, max_ops=9)
    cost = MonotoneCost(seed)

    lazy = plan(graph, cost, PlannerSettings("lazy-ios", max_block_ops=None))

    full = plan(graph, MonotoneCost(seed), PlannerSettings("ios", max_block_ops=None))
    assert lazy.predicted_us == pytest.approx(full.predicted_us)


@pytest.mark.parametrize("seed", range(20))
def test_a_wanted_gap_is_kept_and_saves_measurements(seed: int) -> None:
    graph, _ = random_graph(seed, max_ops=12)
    exact_cost, loose_cost = MonotoneCost(seed), MonotoneCost(seed)
    facts = exact_cost.facts(len(graph))

    exact = plan(graph, exact_cost, PlannerSettings("lazy-ios"), facts)
    loose = plan(graph, loose_cost, PlannerSettings("lazy-ios", gap=0.2), facts)

    assert loose.gap is not None
    assert loose.gap <= 0.2
    assert loose.predicted_us is not None
    assert exact.predicted_us is not None
    assert loose.predicted_us <= exact.predicted_us * (1 + loose.gap) * (1 + 1e-9)
    assert len(loose_cost.asked) <= len(exact_cost.asked)


def test_a_block_of_many_choices_needs_few_measurements() -> None:
    graph = graph_of(INCEPTION_E)
    cost = OperatorLatencies([5.0, 3.0, 4.0, 4.5, 3.5, 8.0, 4.0, 4.2, 2.0, 3.0, 1.0], 0.3)
    facts = DeviceFacts(overheads=StageOverheads(0.0, group_us=0.3))

    lazy = plan(graph, cost, PlannerSettings("lazy-ios"), facts)

    full = plan(graph, cost, PlannerSettings("ios"))
    assert lazy.predicted_us == pytest.approx(full.predicted_us)
    assert lazy.counts.stages_measured < full.counts.stages_measured / 20


class SlowCost(MonotoneCost):
    def stage_latency_us(self, stage: Stage) -> float:
        time.sleep(0.005)
        return super().stage_latency_us(stage)


def test_a_time_budget_ends_the_search_with_the_gap_it_proved() -> None:
    graph, _ = random_graph(11, max_ops=14)
    cost = SlowCost(11)
    options = PlannerSettings("lazy-ios", time_budget_s=0.05)

    stopped = plan(graph, cost, options, DeviceFacts(overheads=StageOverheads(0.5)))

    best = plan(graph, MonotoneCost(11), PlannerSettings("ios"))
    verify_plan(stopped.plan, graph.predecessors)
    assert stopped.gap is not None
    assert stopped.predicted_us is not None
    assert best.predicted_us is not None
    assert stopped.predicted_us <= best.predicted_us * (1 + stopped.gap) * (1 + 1e-9)


class LyingCost(MonotoneCost):
    """Stages of several groups are faster than their units alone: the bounds are wrong."""

    def stage_latency_us(self, stage: Stage) -> float:
        return super().stage_latency_us(stage) * (0.5 if len(stage.groups) > 1 else 1.0)


def test_a_device_that_breaks_the_bounds_widens_the_gap() -> None:
    graph = graph_of(INCEPTION_E)
    cost = LyingCost(3)

    lazy = plan(graph, cost, PlannerSettings("lazy-ios"), cost.facts(len(graph)))

    assert lazy.gap is not None
    assert lazy.gap > 0.1
    verify_plan(lazy.plan, graph.predecessors)


def test_every_block_gets_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two equally large blocks, in both of which nothing is provable quickly."""
    asked: list[Stage] = []
    looks = count()
    # Each stage takes 2 ms to measure, each look at the clock 20 us.
    monkeypatch.setattr(time, "monotonic", lambda: 2e-3 * len(asked) + 2e-5 * next(looks))

    class Slow(MonotoneCost):
        def stage_latency_us(self, stage: Stage) -> float:
            asked.append(stage)
            return super().stage_latency_us(stage)

    twice = graph_of(_in_a_row(INCEPTION_E, INCEPTION_E))
    half = len(INCEPTION_E)
    options = PlannerSettings("lazy-ios", time_budget_s=0.5)

    planned = plan(twice, Slow(3), options)

    verify_plan(planned.plan, twice.predecessors)
    parallel = [stage for stage in asked if len(stage.groups) > 1]
    first = [stage for stage in parallel if max(stage.operators) < half]
    assert 0.2 * len(parallel) < len(first) < 0.8 * len(parallel)


def _in_a_row(*graphs: Sequence[Sequence[int]]) -> list[list[int]]:
    """Graphs one after the other, all sources of one reading the last unit of the one before."""
    edges: list[list[int]] = []
    for graph in graphs:
        start = len(edges)
        bridge = [start - 1] if start else []
        edges += [[start + p for p in row] or bridge for row in graph]
    return edges
