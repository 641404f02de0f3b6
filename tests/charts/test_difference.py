"""What differs between two schedules of one model."""

from __future__ import annotations

from dataclasses import replace

from braid.charts.difference import compare
from braid.core.plan import sequential_plan
from braid.core.schedule import Schedule, ScheduleKey, Stage


def schedule(*stages: Stage, names: tuple[str, ...] = ("a", "b", "c", "d")) -> Schedule:
    key = ScheduleKey("ab" * 32, "cpu", 1)
    return Schedule(key, "ios", sequential_plan(len(names)), stages, names)


FIRST = schedule(Stage(((0,),), latency_us=1.0), Stage(((1,), (2, 3)), latency_us=5.0))


def test_a_schedule_does_not_differ_from_itself() -> None:
    found = compare(FIRST, FIRST)

    assert found.is_same
    assert [change.change for change in found.stages] == ["kept", "kept"]


def test_each_stage_says_where_its_units_went() -> None:
    other = schedule(
        Stage(((0,),), latency_us=1.0), Stage(((1,),), latency_us=2.0), Stage(((2, 3),))
    )

    found = compare(FIRST, other)

    assert not found.is_same
    kept, spread = found.stages
    assert (kept.change, kept.others) == ("kept", (1,))
    assert (spread.change, spread.others, spread.latency_us) == ("spread", (2, 3), 5.0)
    assert spread.other_latency_us is None, "one of them was not measured"


def test_stages_that_the_other_runs_together_are_joined() -> None:
    other = schedule(Stage(((0,), (1,))), Stage(((2, 3),)))

    assert [change.change for change in compare(FIRST, other).stages] == ["joined", "spread"]


def test_regrouping_and_merging_are_told_apart() -> None:
    other = schedule(Stage(((0,),), "merge"), Stage(((1, 2), (3,))))

    assert [change.change for change in compare(FIRST, other).stages] == [
        "merged differently",
        "regrouped",
    ]


def test_units_are_matched_by_name_across_devices_that_fuse_differently() -> None:
    other = replace(schedule(Stage(((0,), (1,))), names=("a", "b")), plan=sequential_plan(2))

    found = compare(FIRST, other)

    assert found.only_first == ("c", "d")
    assert found.only_second == ()
    assert found.stages[1].others == (1,)
    assert found.stages[1].change == "spread"
