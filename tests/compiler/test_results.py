"""Marks on stored schedules."""

from dataclasses import replace

import pytest

from braid.compiler.results import with_present_engines
from braid.core.plan import EnginePart, sequential_plan
from braid.core.runtimes import ONNXRUNTIME, OPENVINO
from tests.compiler.results import schedule


@pytest.mark.parametrize(
    ("software", "reason"),
    [
        ({ONNXRUNTIME: "1.0", OPENVINO: "2.0"}, ""),
        ({OPENVINO: "2.1"}, "ran in OpenVINO 2.0, and OpenVINO is 2.1"),
        ({ONNXRUNTIME: "1.0"}, "ran in OpenVINO 2.0, and OpenVINO is gone"),
    ],
)
def test_a_schedule_is_made_again_where_its_engine_is_another(
    software: dict[str, str], reason: str
) -> None:
    parts = (EnginePart((0, 1), OPENVINO, "2.0", 2),)
    stored = replace(schedule(), plan=replace(sequential_plan(2), parts=parts))

    present = with_present_engines(stored, software)

    if not reason:
        assert present is stored
        return
    assert reason in present.provenance.again
    assert with_present_engines(present, software) is present
