"""Load patterns over calls that take their own time: what counts as latency, rate, failure."""

import threading
import time

import pytest

from benchmarks.peers.load.calls import Call, CallFailed, Check
from benchmarks.peers.load.loops import closed_loop, closed_rate, open_loop


def sleeping(seconds: float) -> Call:
    def call(number: int) -> Check:
        time.sleep(seconds)
        return lambda: True

    return call


class OwnTime(threading.local):
    """A clock for each thread, which calls of that thread put forward."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def taking(self, seconds: float, is_right: bool = True, failure: str = "") -> Call:
        """A call that takes this long by the clock."""

        def call(number: int) -> Check:
            self.now += seconds
            if failure:
                raise CallFailed(failure)
            return lambda: is_right

        return call


def test_throughput_and_latency_of_a_closed_loop_belong_together() -> None:
    clock, clients = OwnTime(), 4

    samples = closed_loop([clock.taking(0.05) for _ in range(clients)], 0.07, 0.6, clock)

    assert set(samples.latency_us) == {50_000}
    assert samples.answers_per_s * 0.05 == pytest.approx(clients)  # Little's law
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
    clock = OwnTime()
    failing = clock.taking(0.02, failure="UNAVAILABLE")
    wrong = clock.taking(0.03, is_right=False)

    samples = closed_loop([failing, wrong, clock.taking(0.04)], 0.0, 0.11, clock)

    assert samples.errors == {"UNAVAILABLE": 6, "WRONG_ANSWER": 4}
    assert samples.latency_us == [40_000] * 3
