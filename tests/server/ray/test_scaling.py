from dataclasses import dataclass, field

import pytest

from braid.server.ray.scaling import BUSY, MOST_GROWTH, WAITING_MS, ExpectedWaiting, LoadMeter


@dataclass
class Context:
    """What Ray Serve tells a policy."""

    current_num_replicas: int
    aggregated_metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    target_num_replicas: int = 3


def wanted(waiting_ms: list[float], busy: list[float]) -> float:
    nodes = [f"node-{number}" for number in range(len(waiting_ms))]
    metrics = {
        WAITING_MS: dict(zip(nodes, waiting_ms, strict=True)),
        BUSY: dict(zip(nodes, busy, strict=True)),
    }
    policy = ExpectedWaiting(target_waiting_ms=100, target_busy=0.5)
    return policy(Context(len(nodes), metrics))[0]


@pytest.mark.parametrize(
    ("waiting_ms", "busy", "nodes"),
    [
        ([100, 100], [0.0, 0.0], 2),  # at the target of waiting
        ([0, 0], [0.5, 0.5], 2),  # at the target of work
        ([0, 0, 0], [0, 0, 0], 0),  # idle: Ray Serve keeps the least number
        ([150, 150], [1.0, 0.0], 3.5),
        ([50, 50, 50, 50], [0.1, 0.1, 0.1, 0.1], 2),
        ([0, 0, 0, 0], [0.25, 0.25, 0.25, 0.25], 2),  # little waits, but half of the nodes work
    ],
)
def test_waiting_and_work_decide_the_number(
    waiting_ms: list[float], busy: list[float], nodes: float
) -> None:
    assert wanted(waiting_ms, busy) == pytest.approx(nodes)


def test_a_crowd_adds_as_many_nodes_as_there_are_at_most() -> None:
    assert wanted([90_000, 90_000], [1.0, 1.0]) == 2 * MOST_GROWTH


def test_nodes_that_said_nothing_yet_count_as_the_others_do() -> None:
    metrics = {WAITING_MS: {"node-1": 200.0}, BUSY: {"node-1": 0.0}}

    assert ExpectedWaiting(target_waiting_ms=100)(Context(2, metrics))[0] == 4


def test_without_any_statistics_nothing_changes() -> None:
    assert ExpectedWaiting()(Context(2, {}))[0] == 3


def test_the_meter_tells_means_since_it_was_asked() -> None:
    backlogs = [[0.0, 0.4], [0.2, 0.6], [0.0, 0.0]]
    meter = LoadMeter(lambda: backlogs.pop(0))
    meter.sample()
    meter.sample()

    assert meter.take() == {WAITING_MS: pytest.approx(100.0), BUSY: pytest.approx(0.75)}
    assert meter.take() == {WAITING_MS: 0.0, BUSY: 0.0}
