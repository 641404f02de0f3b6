"""Samples that requests interrupt."""

from braid.engine.runtime.yielding import NetTime
from braid.engine.timing.samples import ATTEMPTS, uninterrupted


def test_a_sample_is_tried_until_nothing_interrupts_it() -> None:
    taken = [(9.0, True), (8.0, False), (1.0, False)]
    samples = (NetTime(*sample) for sample in taken)

    assert uninterrupted(lambda: next(samples)) == 8.0


def test_of_samples_that_were_all_interrupted_the_least_counts() -> None:
    tries = iter(range(100, 200))

    assert uninterrupted(lambda: NetTime(float(next(tries)), True)) == 100.0
    assert next(tries) == 100 + ATTEMPTS


def test_a_sample_that_cannot_be_is_taken_again() -> None:
    taken = [(0.0, False), (float("nan"), False), (8.0, False)]
    samples = (NetTime(*sample) for sample in taken)

    assert uninterrupted(lambda: next(samples)) == 8.0


def test_if_no_sample_can_be_the_latency_is_what_the_clock_tells_from_nothing() -> None:
    assert 0 < uninterrupted(lambda: NetTime(0.0, False)) < 1
