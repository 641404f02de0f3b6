"""Parts in engines, as plans may have them."""

from __future__ import annotations

from typing import Any

import pytest

from braid.core.errors import InvalidArtefact
from braid.core.plan import EnginePart, Launch, StreamPlan
from braid.core.runtimes import OPENVINO

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
