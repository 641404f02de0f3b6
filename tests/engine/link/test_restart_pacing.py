"""When a worker that ended is started again."""

from __future__ import annotations

import pytest

from braid.engine.link.supervisor import STABLE_SECONDS, RestartPacing


def test_workers_that_end_at_once_start_ever_further_apart_up_to_a_limit() -> None:
    pacing = RestartPacing(longest_s=5.0)
    pauses = [pacing.pause_s(lived_s=0.0) for _ in range(10)]
    assert pauses[0] == 0.0
    assert pauses == sorted(pauses)
    assert pauses[-1] == 5.0


def test_the_time_for_which_a_worker_lived_counts() -> None:
    pacing = RestartPacing(longest_s=5.0)
    for _ in range(10):
        pacing.pause_s(lived_s=0.0)
    assert pacing.pause_s(lived_s=2.0) == pytest.approx(3.0)
    assert pacing.pause_s(lived_s=6.0) == 0.0
    assert pacing.pause_s(lived_s=0.0) == 5.0


def test_a_worker_that_lived_for_long_makes_up_for_those_before() -> None:
    pacing = RestartPacing(longest_s=5.0)
    for _ in range(10):
        pacing.pause_s(lived_s=0.0)
    assert pacing.pause_s(lived_s=STABLE_SECONDS + 1) == 0.0
    assert pacing.pause_s(lived_s=0.0) == pytest.approx(0.1)
