import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from braid.core.device_state import DeviceState
from braid.core.errors import InvalidArtefact
from braid.core.json_form import from_json, to_json
from braid.core.measurement import Speed
from braid.core.plan import EnginePart, Launch, StreamPlan, sequential_plan
from braid.core.runtimes import ONNXRUNTIME, OPENVINO, PLAN_NAMES, plan_text
from braid.core.schedule import (
    Contender,
    ContestRow,
    ContestTable,
    Provenance,
    Schedule,
    ScheduleKey,
    schedule_from_json,
    schedule_to_json,
)
from braid.scheduler.options import PLANNERS

PART = EnginePart((1, 2), OPENVINO, "2.0", 2)
LAUNCHES = tuple(Launch(unit, 0) for unit in range(3))
ROWS = EnginePart((0, 1, 2), "", "", 1, 3)


@pytest.mark.parametrize(
    "plan",
    [
        {"parts": (EnginePart((0, 2), OPENVINO, "2.0", 2),)},  # not in a row
        {"parts": (PART, PART)},
        {"parts": (PART,), "merges": ((0, 1),)},
        {"parts": (PART,), "barriers": (2,)},
        {"parts": (EnginePart((2, 3), OPENVINO, "2.0", 2),)},  # never launched
        # Parts of some rows have all units and stand alone.
        {"parts": (EnginePart((0, 1), "", "", 1, 3), EnginePart((0, 1, 2), "", "", 1, 2))},
        {"parts": (ROWS, EnginePart((0, 1), OPENVINO, "2.0", 1))},
        {"parts": (ROWS, ROWS), "merges": ((0, 1),)},
    ],
)
def test_parts_are_launched_in_a_row_and_once(plan: dict[str, Any]) -> None:
    with pytest.raises(InvalidArtefact):
        StreamPlan(LAUNCHES, 1, **plan)


Groups = tuple[tuple[int, ...], ...]


@pytest.mark.parametrize(
    ("groups", "name"),
    [
        ((), ""),
        (((0, 1, 2),), "near"),
        (((0,), (1,)), "far"),
        (((0, 1, 2, 3), (4, 5, 6, 7)), "0-3/4-7"),
        (((0, 2, 3), (1,)), "0,2-3/1"),
    ],
)
def test_a_state_is_named_by_its_groups(groups: Groups, name: str) -> None:
    assert DeviceState(groups).name == name


def test_a_lane_belongs_to_one_group() -> None:
    with pytest.raises(ValueError, match="each lane"):
        DeviceState(((0, 1), (1, 2)))


def test_a_state_says_how_far_its_lanes_are() -> None:
    far = DeviceState(((0,), (1,)), ((0.0, 370.4), (370.4, 0.0)))
    chiplets = DeviceState(
        ((0, 1), (2,)), ((0.0, 45.0, 210.0), (45.0, 0.0, 200.0), (210.0, 200.0, 0.0))
    )

    assert [str(state) for state in (far, chiplets)] == ["far (370 ns)", "0-1/2 (45 to 210 ns)"]
    assert str(DeviceState()) == "not known"
    assert from_json(DeviceState, to_json(chiplets)) == chiplets


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


STORED = json.loads((Path(__file__).parent / "stored_schedules.json").read_text())
"""Schedules as a9f91505 wrote them, of plans that still are and of some that are no more."""
KEPT = ("settled", "provisional", "parallel")


@pytest.mark.parametrize("kind", KEPT)
def test_a_schedule_that_a9f91505_stored_loads_with_the_same_keys_and_content(kind: str) -> None:
    stored = STORED[kind]

    schedule = schedule_from_json(stored["schedule"])

    assert (schedule.key.id, schedule.plan_id) == (stored["id"], stored["plan_id"])
    expected, again = stored["schedule"], json.loads(json.dumps(schedule_to_json(schedule)))
    candidates = expected["provenance"].pop("candidates")
    left = [each for each in candidates if not each["name"].endswith("-1")]
    assert again["provenance"].pop("candidates") == left
    new = again.pop("others"), again["provenance"].pop("again")
    assert new == ([], "")
    assert not again["provenance"].pop("is_decided")
    assert not again["provenance"].pop("decision")
    for gone in ("state", "provisional"):
        expected["provenance"].pop(gone, None)
    assert again | {"sha256": ""} == expected | {"sha256": ""}


@pytest.mark.parametrize(
    ("kind", "said"), [("onnxruntime-1", "is of onnxruntime-1"), ("teams", "has teams or bands")]
)
def test_a_schedule_of_a_plan_that_is_no_more_is_refused_by_name(kind: str, said: str) -> None:
    with pytest.raises(InvalidArtefact, match=rf"{said}, .*`braid schedule again MODEL`"):
        schedule_from_json(STORED[kind]["schedule"])


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


def test_a_contest_is_told_in_one_line_with_full_names_and_the_moment_of_its_latencies() -> None:
    first = ContestRow("openvino", 40, latency_us=4130.0, runs=300)
    own = ContestRow("lazy-ios(r=3,join=unit,gap=0.01)", 40, 1.005).beside(first)
    rows = first, own
    line = "serves: OpenVINO, 4.13 ms; own plan (stages by IOS, measured lazily, join=unit) 4.15 ms"

    assert ContestTable(rows).text == f"{line}; undecided after 40 pairs"
    unasked = replace(rows[0], runs=0)
    assert ContestTable((unasked, own)).text == (
        f"{line}; measured in idle time; undecided after 40 pairs"
    )
    decided = ContestTable((unasked, own), is_decided=True).text
    assert decided == f"{line}; measured at the decision; decided after 40 pairs"
    unasked = replace(unasked, pairs=0)
    assert ContestTable((unasked,)).text == "serves: OpenVINO, 4.13 ms; measured at registration"
    assert plan_text("openvino in bf16") == "OpenVINO in bf16"


@pytest.mark.parametrize("planner", PLANNERS)
def test_every_planner_has_a_name_for_users(planner: str) -> None:
    assert plan_text(f"{planner}(r=3,gap=0.01)") == PLAN_NAMES[planner]
