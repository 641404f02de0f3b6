from __future__ import annotations

from scheduler.options import PlannerOptions
from scheduler.planners import plan
from scheduler.store import MemoryStore, StoredCost
from scheduler.units import UnitGraph
from tests.scheduler.oracle import RandomCost
from tests.scheduler.test_signature import two_chains


def test_what_one_model_measured_serves_the_next() -> None:
    store = MemoryStore()
    ours, theirs = two_chains(3), two_chains(3, prefix="other_")
    first = StoredCost(RandomCost(1), store, "cpu", UnitGraph.from_graph(ours))
    second = StoredCost(RandomCost(2), store, "cpu", UnitGraph.from_graph(theirs))

    plan(ours, first, PlannerOptions("ios"))
    plan(theirs, second, PlannerOptions("ios"))

    assert first.measured > 0
    assert second.measured == 0
    assert second.reused == first.measured


def test_another_device_measures_for_itself() -> None:
    store = MemoryStore()
    graph = two_chains(2)
    units = UnitGraph.from_graph(graph)

    plan(graph, StoredCost(RandomCost(1), store, "cpu", units), PlannerOptions("ios"))
    other = StoredCost(RandomCost(1), store, "cuda:0", units)
    plan(graph, other, PlannerOptions("ios"))

    assert other.reused == 0
