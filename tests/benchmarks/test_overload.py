"""What the overload benchmark compares with."""

from __future__ import annotations

from benchmarks.overload import perfect_wait_s

SERVICE_S = 0.01


def test_waits_of_a_perfect_queue_are_those_of_queueing_theory() -> None:
    light, heavy = (perfect_wait_s(1 / SERVICE_S, load, 600, seed=1) for load in (0.1, 0.8))

    assert light < SERVICE_S  # only who comes while another is served waits
    assert 9 * SERVICE_S < heavy < 13 * SERVICE_S  # M/D/1: exp(-0.43 w) of requests wait longer
