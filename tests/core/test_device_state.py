"""Names of states, which are parts of keys, and texts of them."""

from __future__ import annotations

import pytest

from braid.core.device_state import DeviceState
from braid.core.json_form import from_json, to_json

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
