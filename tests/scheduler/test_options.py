from __future__ import annotations

import pytest

from braid.core.errors import InvalidRequest
from braid.scheduler.options import PlannerOptions


def test_the_text_names_the_planner_and_its_pruning() -> None:
    assert PlannerOptions("ios").text == "ios(r=3,s=8)"
    assert PlannerOptions("sequential").text == "sequential"


@pytest.mark.parametrize(
    "options",
    [
        PlannerOptions("ios"),
        PlannerOptions("sequential"),
        PlannerOptions("ios", max_group_ops=None, max_groups=2, single_root=True),
        PlannerOptions("ios", max_block_ops=None, max_streams=2),
    ],
)
def test_the_text_reads_back(options: PlannerOptions) -> None:
    assert PlannerOptions.parse(options.text) == options
    assert hash(PlannerOptions.parse(options.text)) == hash(options)


@pytest.mark.parametrize("text", ["", "magic", "ios(q=3)", "ios(r=0)", "ios(r=-1)", "ios(r=3"])
def test_what_is_not_a_planner_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        PlannerOptions.parse(text)
