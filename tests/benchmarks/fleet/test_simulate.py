"""The simulated fleet against closed forms, and what holds of every fleet: no request is lost."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchmarks.fleet.simulate.autoscaling import Autoscaling
from benchmarks.fleet.simulate.doors import (
    EXPECTED_LATENCY,
    LEAST_CONNECTIONS,
    POLICIES,
    ROUND_ROBIN,
    DoorPolicy,
)
from benchmarks.fleet.simulate.failures import Failures
from benchmarks.fleet.simulate.load import Arrivals, ClosedLoop, OpenLoop
from benchmarks.fleet.simulate.scenario import Scenario, exponential, lognormal, simulate
from braid.server.store.serving_config import BatchPolicy

ONE_BY_ONE = {1: 10_000.0}  # 10 ms, never in batches
BATCHES = {1: 10_000.0, 2: 12_000.0, 4: 16_000.0, 8: 24_000.0}


def poisson(rate: float) -> OpenLoop:
    return OpenLoop(((0.0, rate),))


def test_one_device_of_constant_latency_is_an_m_d_1_queue() -> None:
    scenario = Scenario(batch_us=ONE_BY_ONE, load=poisson(70), measure_s=150, seed=3)

    report = simulate(scenario)

    mean_s = sum(latency for _, latency in report.finished) / len(report.finished)
    wanted_s = 0.010 + 0.010 * 0.7 / (2 * (1 - 0.7))  # Pollaczek and Khinchine
    assert mean_s == pytest.approx(wanted_s, rel=0.06)
    assert report.nodes[0].utilisation == pytest.approx(0.7, rel=0.03)


def test_one_device_of_exponential_latency_is_an_m_m_1_queue() -> None:
    scenario = Scenario(
        batch_us=ONE_BY_ONE, load=poisson(60), noise=exponential, measure_s=250, seed=5
    )

    report = simulate(scenario)

    assert report.p50_ms == pytest.approx(1e3 * math.log(2) / (100 - 60), rel=0.1)
    assert report.p99_ms == pytest.approx(1e3 * math.log(100) / (100 - 60), rel=0.2)


def test_requests_at_given_moments_wait_for_those_before_them() -> None:
    load = Arrivals((0.0, 0.004, 0.004, 0.1))
    scenario = Scenario(batch_us=ONE_BY_ONE, load=load, warmup_s=0, measure_s=1)

    report = simulate(scenario)

    latencies_ms = sorted(1e3 * latency for _, latency in report.finished)
    assert latencies_ms == pytest.approx([10, 10, 16, 26])


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_equal_nodes_under_more_clients_than_they_can_serve_reach_their_throughput(
    policy: DoorPolicy,
) -> None:
    scenario = Scenario(
        batch_us=BATCHES,
        slowness=(1, 1, 1),
        load=ClosedLoop(120),
        policy=policy,
        measure_s=2,
        warmup_s=1,
    )

    report = simulate(scenario)

    assert report.ideal_per_s == pytest.approx(3 * 8 / 0.024)
    assert report.answers_per_s == pytest.approx(report.ideal_per_s, rel=0.03)
    assert all(node.mean_rows > 7 for node in report.nodes)


def test_a_closed_loop_obeys_littles_law() -> None:
    report = simulate(Scenario(batch_us=BATCHES, slowness=(1, 1), load=ClosedLoop(10), measure_s=5))

    mean_s = sum(latency for _, latency in report.finished) / len(report.finished)
    assert report.answers_per_s * mean_s == pytest.approx(10, rel=0.03)


def test_nothing_waits_where_one_client_asks() -> None:
    report = simulate(Scenario(batch_us=BATCHES, load=ClosedLoop(1), way_s=0.002))

    assert report.p50_ms == pytest.approx(12.0, rel=0.01)
    assert report.p99_ms == pytest.approx(12.0, rel=0.01)


def test_the_slow_node_gets_its_part_only_where_the_door_looks_at_more_than_turns() -> None:
    mixed = Scenario(batch_us=ONE_BY_ONE, slowness=(1, 1, 10), load=poisson(140), measure_s=10)
    by_turns = simulate(replace(mixed, policy=ROUND_ROBIN))
    by_latency = simulate(replace(mixed, policy=EXPECTED_LATENCY))

    assert by_turns.p99_ms > 10 * by_latency.p99_ms
    assert by_latency.nodes[2].answers < by_latency.nodes[0].answers / 5


def test_slots_keep_the_queue_at_the_door() -> None:
    open_door = Scenario(batch_us=ONE_BY_ONE, slowness=(1, 1, 10), load=ClosedLoop(60), measure_s=8)
    with_slots = replace(open_door, policy=replace(LEAST_CONNECTIONS, slots=2))

    free, held = simulate(open_door), simulate(with_slots)

    assert held.answers_per_s == pytest.approx(held.ideal_per_s, rel=0.02)
    assert held.nodes[2].p99_ms < free.nodes[2].p99_ms / 3


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("load", [ClosedLoop(50), poisson(400)], ids=["closed", "open"])
def test_every_request_ends_exactly_once_whatever_fails(
    seed: int, load: ClosedLoop | OpenLoop
) -> None:
    scenario = Scenario(
        batch_us=BATCHES,
        slowness=(1, 2, 10),
        load=load,
        policy=replace(POLICIES[seed % 4], slots=3 if seed > 2 else None),
        doors=1 + seed % 3,
        batching=BatchPolicy(max_requests=8),
        noise=lognormal,
        failures=Failures(mean_between_s=0.4, away_s=0.3),
        timeout_s=0.3 if seed % 2 else math.inf,
        warmup_s=0.0,
        measure_s=3.0,
        seed=seed,
    )

    report = simulate(scenario)

    assert report.sent == sum(report.outcomes.values()) > 200
    assert report.outcomes["OK"] == len(report.finished)
    assert report.outcomes["UNAVAILABLE"] > 0


def test_a_dead_node_costs_what_it_had_and_no_more() -> None:
    scenario = Scenario(
        batch_us=ONE_BY_ONE,
        slowness=(1, 1, 1),
        load=ClosedLoop(9),
        failures=Failures(mean_between_s=2.0, away_s=1000.0, kills=1),
        warmup_s=0.0,
        measure_s=8.0,
    )

    report = simulate(scenario)

    assert 1 <= report.outcomes["UNAVAILABLE"] <= 3
    assert set(report.outcomes) == {"OK", "UNAVAILABLE"}


def test_a_fleet_grows_with_its_load_and_shrinks_after_it() -> None:
    steps = OpenLoop(((0.0, 50.0), (40.0, 260.0), (100.0, 20.0)))
    scenario = Scenario(
        batch_us=ONE_BY_ONE,
        slowness=(1,),
        load=steps,
        autoscaling=Autoscaling(1, 6, start_s=5, down_after_s=20),
        warmup_s=0.0,
        measure_s=200.0,
    )

    report = simulate(scenario)

    most = max(size for at, size in report.sizes)
    assert 3 <= most <= 6
    assert report.sizes[-1][1] < most
    assert report.outcomes["OK"] + report.outcomes.get("RESOURCE_EXHAUSTED", 0) == report.sent


def test_the_same_seed_gives_the_same_report_and_another_one_another() -> None:
    scenario = Scenario(
        batch_us=BATCHES, slowness=(1, 3), load=poisson(200), noise=lognormal, measure_s=3
    )

    assert simulate(scenario) == simulate(scenario)
    assert simulate(scenario) != simulate(replace(scenario, seed=2))
