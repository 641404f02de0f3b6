from __future__ import annotations

import pytest

from braid.core.errors import InvalidRequest
from braid.scheduler.options import PlannerSettings


def test_the_text_names_the_planner_and_its_pruning() -> None:
    assert PlannerSettings("ios").text == "ios(r=3,s=8)"
    assert PlannerSettings("sequential").text == "sequential"


@pytest.mark.parametrize(
    "options",
    [
        PlannerSettings("ios"),
        PlannerSettings("sequential"),
        PlannerSettings("ios", max_group_ops=None, max_groups=2, single_root=True),
        PlannerSettings("ios", max_block_ops=None, max_streams=2),
    ],
)
def test_the_text_reads_back(options: PlannerSettings) -> None:
    assert PlannerSettings.parse(options.text) == options
    assert hash(PlannerSettings.parse(options.text)) == hash(options)


@pytest.mark.parametrize("text", ["", "magic", "ios(q=3)", "ios(r=0)", "ios(r=-1)", "ios(r=3"])
def test_what_is_not_a_planner_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        PlannerSettings.parse(text)
