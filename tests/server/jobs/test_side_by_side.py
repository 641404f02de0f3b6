"""Runs side by side, as a registration measures and stores them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from braid.core.json_form import to_json
from braid.core.measurement import SideBySideRuns, Speed, side_by_side_text
from braid.core.plan import sequential_plan
from braid.core.runtimes import ONNXRUNTIME, OPENVINO
from braid.core.schedule import (
    Provenance,
    Schedule,
    ScheduleKey,
    provenance_from_json,
    schedule_from_json,
    schedule_to_json,
)

BEST = SideBySideRuns(2, ONNXRUNTIME, 6370.0, Speed(1.25, 1.1, 1.35))


def schedule(found: SideBySideRuns | None) -> Schedule:
    key = ScheduleKey("d", "device", 1)
    return Schedule(
        key, "sequential", sequential_plan(1), (), ("a",), Provenance(side_by_side=found)
    )


@pytest.mark.parametrize("found", [None, BEST])
def test_a_stored_schedule_says_how_runs_side_by_side_fared(found: SideBySideRuns | None) -> None:
    assert schedule_from_json(schedule_to_json(schedule(found))).provenance.side_by_side == found


def test_what_runs_side_by_side_has_an_id_of_its_own() -> None:
    ids = {schedule(BEST).side_by_side_id, schedule(BEST).plan_id}
    assert len(ids) == 2
    assert schedule(None).side_by_side_id == ""


def test_earlier_versions_said_only_whether_it_was_onnxruntime() -> None:
    for in_onnxruntime, runtime in ((True, ONNXRUNTIME), (False, "")):
        stored = to_json(Provenance(side_by_side=BEST))
        del stored["side_by_side"]["runtime"]
        stored["side_by_side"]["in_onnxruntime"] = in_onnxruntime

        found = provenance_from_json(stored).side_by_side

        assert found == replace(BEST, runtime=runtime)


def test_the_text_says_whether_it_is_used() -> None:
    text = "2 at once (ONNX Runtime), 6.37 ms each: 1.250x (1.100 to 1.350) the runs a second"
    assert side_by_side_text(BEST) == text
    assert "(OpenVINO)" in side_by_side_text(replace(BEST, runtime=OPENVINO))
    doubtful = SideBySideRuns(2, ONNXRUNTIME, 6370.0, Speed(1.25, 0.9, 1.35))
    assert "not used" in side_by_side_text(doubtful)
