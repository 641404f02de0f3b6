"""Schedules: the id of their plan, the one speed they show, and documents of earlier versions."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from braid.core.measurement import Speed
from braid.core.plan import Launch, StreamPlan, sequential_plan
from braid.core.runtimes import ONNXRUNTIME, OPENVINO
from braid.core.schedule import (
    Contender,
    Provenance,
    Schedule,
    ScheduleKey,
    Stage,
    schedule_from_json,
    schedule_to_json,
)

PARALLEL = StreamPlan((Launch(0, 0), Launch(1, 1)), 2)
SEEN = Provenance(
    measured_us=90.0,
    sequential_us=100.0,
    spread=0.03,
    candidates=(
        Contender("sequential", 100.0, 0.02, 99, 1.0, speedup_least=1.0, speedup_most=1.0),
        Contender("lios(s=2)", 90.0, 0.03, 99, 1.12, speedup_least=1.1, speedup_most=1.14),
    ),
)
SCHEDULE = Schedule(
    ScheduleKey("ab" * 32, "cpu", 4, planner="lios(s=2)"), "lios", PARALLEL, (), ("a", "b"), SEEN
)


def test_equal_content_has_equal_plan_ids_of_any_planner_and_measurement() -> None:
    by_another = replace(SCHEDULE, planner="greedy", key=replace(SCHEDULE.key, planner="portfolio"))
    again = replace(SCHEDULE, provenance=replace(SEEN, measured_us=95.0, created="later"))

    assert SCHEDULE.plan_id.startswith("parallel-")
    assert by_another.plan_id == again.plan_id == SCHEDULE.plan_id


def test_what_runs_differently_has_another_plan_id() -> None:
    key = SCHEDULE.key
    others = [
        replace(SCHEDULE, plan=sequential_plan(2)),
        replace(SCHEDULE, plan=replace(PARALLEL, barriers=(1,))),
        replace(SCHEDULE, planner=ONNXRUNTIME),
        replace(SCHEDULE, planner=OPENVINO),
        replace(SCHEDULE, provenance=replace(SEEN, choices={"conv": "other"})),
        replace(SCHEDULE, key=replace(key, batch_size=1)),
        replace(SCHEDULE, key=replace(key, precision="fp16")),
        replace(SCHEDULE, key=replace(key, shapes="h=48")),
        replace(SCHEDULE, key=replace(key, device_key="cuda")),
        replace(SCHEDULE, key=replace(key, model_digest="cd" * 32)),
    ]

    assert len({each.plan_id for each in (SCHEDULE, *others)}) == 1 + len(others)
    kinds = [each.plan_id.partition("-")[0] for each in others[:4]]
    assert kinds == ["sequential", "sequential", "onnxruntime", "openvino"]


def test_a_schedule_has_the_speed_of_the_candidate_that_it_is_about() -> None:
    assert SCHEDULE.speed == Speed(1.12, 1.1, 1.14)
    assert SCHEDULE.sequential_spread == 0.02
    assert replace(SCHEDULE, planner="sequential").speed == Speed(1.0, 1.0, 1.0)
    assert schedule_from_json(schedule_to_json(SCHEDULE)) == SCHEDULE


def as_stored(document: dict[str, Any]) -> dict[str, Any]:
    """A document with its checksum made anew."""
    body = {name: value for name, value in document.items() if name != "sha256"}
    checksum = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return {**body, "sha256": checksum}


def test_a_schedule_of_an_earlier_version_shows_what_was_recorded_and_no_interval() -> None:
    document = schedule_to_json(SCHEDULE)
    for each in document["provenance"]["candidates"]:
        del each["speedup_least"], each["speedup_most"]
    bare = schedule_to_json(replace(SCHEDULE, provenance=replace(SEEN, candidates=())))

    assert schedule_from_json(as_stored(document)).speed == Speed(1.12)
    assert schedule_from_json(as_stored(bare)).speed is None, "two medians are no paired ratio"


@pytest.mark.parametrize("impossible", [0.0, -1.0, float("inf")])
def test_latencies_that_cannot_be_are_unknown_when_they_are_read(impossible: float) -> None:
    stages = (Stage(((0,), (1,)), latency_us=impossible),)
    seen = replace(SEEN, measured_us=impossible, candidates=(Contender("lios", impossible),))
    document = schedule_to_json(replace(SCHEDULE, stages=stages, provenance=seen))

    schedule = schedule_from_json(document)

    assert schedule.provenance.measured_us is None
    assert schedule.provenance.candidates[0].latency_us is None
    assert schedule.stages[0].latency_us is None


def test_a_schedule_that_an_earlier_version_stored_loads_with_the_same_key_and_content() -> None:
    stored = json.loads((Path(__file__).parent / "stored_schedule.json").read_text())

    schedule = schedule_from_json(stored["schedule"])

    again = schedule_to_json(schedule)
    candidates = again["provenance"].pop("candidates")
    before = stored["schedule"]["provenance"].pop("candidates")
    assert again["provenance"].pop("side_by_side") is None
    assert again["provenance"].pop("top_agreement") is None
    assert again["provenance"].pop("quantisation") is None
    assert again["provenance"].pop("left_out") == {}
    assert again["provenance"].pop("is_decided") is False
    assert (again["provenance"].pop("again"), again.pop("others")) == ("", [])
    assert (again["provenance"].pop("precision"), again["provenance"].pop("samples")) == ("", 0)
    assert schedule.key.id == stored["id"]
    assert {k: v for k, v in again.items() if k != "sha256"} == {
        k: v for k, v in stored["schedule"].items() if k != "sha256"
    }
    new = dict.fromkeys(("speedup_least", "speedup_most", "top_agreement"))
    assert candidates == [each | new | {"precision": ""} for each in before]


@pytest.mark.parametrize(
    ("other", "part"),
    [
        (Contender(ONNXRUNTIME, 400.0), 0.75),
        (Contender(ONNXRUNTIME, 80.0), -0.25),
        (Contender(ONNXRUNTIME, remark="the process ended"), None),
        (Contender(ONNXRUNTIME, 400.0, precision="bf16"), None),
        (Contender(OPENVINO, 400.0), None),
    ],
)
def test_what_the_sequential_plan_saves_is_told_where_both_were_measured(
    other: Contender, part: float | None
) -> None:
    measured = replace(SEEN, candidates=(*SEEN.candidates, other))

    assert replace(SCHEDULE, provenance=measured).part_saved_from(ONNXRUNTIME) == part
