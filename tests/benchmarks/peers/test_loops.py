"""Load patterns over calls that sleep: what counts as throughput, latency, failure."""

from __future__ import annotations

import time

import pytest

from benchmarks.peers.load.calls import Call, CallFailed, Check
from benchmarks.peers.load.loops import closed_loop, closed_rate, open_loop


def sleeping(seconds: float, is_right: bool = True) -> Call:
    def call(number: int) -> Check:
        time.sleep(seconds)
        return lambda: is_right

    return call


def test_throughput_and_latency_of_a_closed_loop_belong_together() -> None:
    clients = 4

    samples = closed_loop([sleeping(0.05) for _ in range(clients)], 0.05, 0.6)

    mean_s = sum(samples.latency_us) / len(samples.latency_us) / 1e6
    assert min(samples.latency_us) >= 50_000
    assert samples.answers_per_s * mean_s == pytest.approx(clients, rel=0.2)  # Little's law
    assert samples.errors == {}


def test_answers_that_come_together_are_counted_by_the_time_between_them() -> None:
    batches = [10.0, 10.5, 11.0]  # seconds; eight answers at each

    assert closed_rate([batches] * 8, seconds=1.2) == 16.0
    assert closed_rate([batches, [10.0]], seconds=2.0) == 2.0


def test_an_open_loop_counts_the_wait_of_a_request_that_was_due_earlier() -> None:
    samples = open_loop([sleeping(0.05)], rate_per_s=60, warmup_s=0.0, measure_s=0.5, seed=0)

    assert max(samples.latency_us) > 3 * 50_000  # three times what the one connection can do
    assert samples.answers_per_s <= 1 / 0.05


def test_failed_and_wrong_answers_are_no_latencies() -> None:
    def failing(number: int) -> Check:
        raise CallFailed("UNAVAILABLE")

    samples = closed_loop([failing, sleeping(0.01, is_right=False), sleeping(0.01)], 0.0, 0.2)

    assert set(samples.errors) == {"UNAVAILABLE", "WRONG_ANSWER"}
    assert len(samples.latency_us) <= 0.2 / 0.01 + 1
