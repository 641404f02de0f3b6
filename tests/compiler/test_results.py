"""Marks on stored schedules."""

import subprocess
import sys
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


ABOVE = ("braid.server", "braid.library")


def test_to_compile_loads_nothing_of_the_server_and_no_torch() -> None:
    program = "import sys, braid.compiler.compile, braid.compiler.bench; print(*sys.modules)"

    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    loaded = ran.stdout.split()
    assert "braid.engine.link.messages" in loaded
    assert [name for name in loaded if name.startswith((*ABOVE, "torch", "sqlalchemy"))] == []
