"""Registrations of two checkouts beside each other."""

from __future__ import annotations

from benchmarks.ready import Step, Timeline, compare


def registered(ready_s: float) -> Timeline:
    steps = (
        Step(0.0, "UPLOAD", "file"),
        Step(1.0, "PROFILING", "stages"),
        Step(3.0, "UPLOAD", "file"),
    )
    return Timeline(steps, 1.0, ready_s, "READY", {1: "sequential"}, {1: 1.0})


def test_medians_of_two_checkouts_are_compared() -> None:
    ours = [registered(5.0), registered(4.0), registered(90.0)]
    theirs = [registered(4.0), registered(4.0), registered(4.0)]

    text = compare(ours, theirs)

    assert text.startswith("ready after 1.25 of the other")


def test_a_step_lasts_until_the_next_one_begins_and_the_last_until_ready() -> None:
    lasted_s = registered(5.0).lasted_s()

    assert lasted_s == {"upload: file": 1.0 + 2.0, "profiling: stages": 2.0}
