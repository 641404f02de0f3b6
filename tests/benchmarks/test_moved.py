"""Figures of the time around a change of state, from answers of clients."""

from __future__ import annotations

from dataclasses import replace
from math import isnan

import pytest

from benchmarks.moved import Answer, change_of, for_far_cores, tail_of
from braid.core.plan import sequential_plan
from braid.core.runtimes import ONNXRUNTIME, OPENVINO
from braid.core.schedule import SEQUENTIAL, Provenance, Schedule, ScheduleKey


def answers(first_s: int, last_s: int, us: float, plan_id: str) -> list[Answer]:
    """One each second."""
    return [Answer(float(at_s), us, plan_id) for at_s in range(first_s, last_s)]


def test_a_change_counts_from_when_it_was_told_to_the_first_answer_of_the_new_plan() -> None:
    seen = answers(0, 33, 1000.0, "near") + answers(33, 100, 1500.0, "far")

    change = change_of("far", 30.0, 30.0, seen)

    assert (change.switch_s, change.requests, change.failed) == (3.0, 61, 0)
    assert change.p50_us == (1000.0, 1500.0)
    assert change.tail == 1.0
    assert change.is_good


@pytest.mark.parametrize(
    "bad",
    [
        [Answer(31.0, 9000.0, "near")],
        [Answer(31.0, 1000.0, "", "UNAVAILABLE")],
        answers(33, 37, 1000.0, "near"),
    ],
    ids=["a slow one", "a failed one", "late"],
)
def test_a_slow_tail_a_failure_and_a_late_plan_miss_a_goal(bad: list[Answer]) -> None:
    late = int(bad[-1].at_s) if len(bad) > 1 else 32
    seen = answers(0, 33, 1000.0, "near") + bad + answers(late + 1, 61, 1500.0, "far")

    assert not change_of("far", 30.0, 30.0, seen).is_good


def test_without_another_plan_there_is_no_time_of_a_switch() -> None:
    change = change_of("far", 30.0, 30.0, answers(0, 61, 1000.0, "near"))

    assert isnan(change.switch_s)
    assert not change.is_good


def test_a_tail_is_of_the_requests_that_were_answered() -> None:
    seen = answers(0, 95, 1000.0, "near") + answers(95, 100, 3000.0, "near")

    assert tail_of([*seen, Answer(100.0, 9e6, "", "UNAVAILABLE")]) == 3.0


def test_the_schedule_of_the_other_state_runs_something_else_under_a_key_of_its_own() -> None:
    near = Schedule(
        *(ScheduleKey("d" * 64, "cpu", 1), "ios", sequential_plan(2), (), ("a", "b")),
        Provenance(state="near", promoted=True),
    )

    far = for_far_cores(near)
    assert (far.key.of_first_state, far.key.state, far.provenance.state) == (near.key, "far", "far")
    assert far.runtime == ONNXRUNTIME
    assert for_far_cores(replace(near, planner=OPENVINO)).planner == SEQUENTIAL
