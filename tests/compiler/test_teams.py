"""Candidates that choose the threads of each unit; the device is a table."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from braid.compiler.teams import BANDS, ONE_LANE, TEAMS, PlansOfTeams, is_short, plans_of_teams
from braid.compiler.work import Work
from braid.core.device_state import DeviceState
from braid.core.graph import Operator, OpGraph
from braid.core.plan import (
    has_teams,
    plan_from_json,
    plan_of_teams,
    plan_to_json,
    runs_in_sequence,
    sequential_plan,
)
from braid.core.program import ProgramKey
from braid.core.schedule import Schedule, ScheduleKey
from braid.core.tensor import TensorType
from braid.engine.link.messages import LaunchLatencies, MeasureInPlace
from braid.scheduler.planners import Planned

SPEC = TensorType("FP32", (1, 4))
NAMES = [f"u{at}" for at in range(4)]
GRAPH = OpGraph(
    "chain",
    {"x": SPEC},
    {"y": NAMES[-1]},
    {},
    tuple(
        Operator(name, "aten.relu", (source,), (name,))
        for source, name in zip(["x", *NAMES], NAMES, strict=False)
    ),
    dict.fromkeys(NAMES, SPEC),
)


async def far() -> DeviceState:
    return DeviceState(((0,), (1,)))


def found(on_one_us: list[float], on_two_us: list[float] | None) -> PlansOfTeams:
    """Plans for a device whose units take so long, whatever ran before; None: it cannot tell."""

    async def ask(request: MeasureInPlace) -> LaunchLatencies:
        if on_two_us is None:
            return LaunchLatencies(())
        times = [None, on_one_us, on_two_us]
        return LaunchLatencies(
            tuple(
                tuple(
                    cast(list[float], times[launch.threads])[launch.unit]
                    for launch in plan.launches
                )
                for plan in request.plans
            )
        )

    work: Any = SimpleNamespace(device=SimpleNamespace(ask=ask, find_state=far))
    return asyncio.run(plans_of_teams(cast(Work, work), ProgramKey("d", ()), GRAPH, 2))


def planned(on_one_us: list[float], on_two_us: list[float] | None) -> Sequence[Planned]:
    return found(on_one_us, on_two_us).planned


@pytest.mark.parametrize(
    ("on_two_us", "takes_part"), [([6.0] * 4, False), ([7.0] * 4, True), (None, True)]
)
def test_other_runtimes_take_part_on_one_thread_where_own_kernels_are_near_it(
    on_two_us: list[float] | None, takes_part: bool
) -> None:
    assert found([10.0] * 4, on_two_us).on_one_thread == takes_part


def test_each_unit_has_the_team_it_is_fastest_on() -> None:
    one_lane, teams = planned([10, 10, 400, 400], [30, 30, 210, 210])

    assert (one_lane.planner, one_lane.plan) == (ONE_LANE, plan_of_teams([1, 1, 1, 1]))
    assert (teams.planner, teams.plan) == (TEAMS, plan_of_teams([1, 1, 2, 2]))
    assert teams.predicted_us == 440
    assert one_lane.predicted_us == 820


@pytest.mark.parametrize("on_two_us", [[20.0] * 4, [4.0] * 4, [10.1, 9.9, 10.0, 10.0], None])
def test_the_plan_of_one_lane_is_a_candidate_by_itself(on_two_us: list[float] | None) -> None:
    (one_lane,) = planned([10.0] * 4, on_two_us)

    assert one_lane.plan == plan_of_teams([1] * 4)


def test_networks_of_short_units_and_tiny_ones_take_part() -> None:
    assert is_short(1999.0, 1)
    assert is_short(19_000.0, 100)
    assert not is_short(30_000.0, 100)
    assert not is_short(None, 100)


def test_a_plan_with_teams_survives_json_and_has_an_id_of_its_own() -> None:
    plan = plan_of_teams([1, 2, 0])
    schedule = Schedule(ScheduleKey("d", "cpu", 1), TEAMS, plan, (), ("a", "b", "c"))

    assert plan_from_json(plan_to_json(plan)) == plan
    assert plan_to_json(sequential_plan(1))["launches"] == [[0, 0, []]]
    assert has_teams(plan)
    assert not runs_in_sequence(plan)
    assert schedule.plan_id.startswith("teams-")


IMAGE, WEIGHT = TensorType("FP32", (1, 8, 64, 64)), TensorType("FP32", (8, 8, 3, 3))

#   x ─> 4 convolutions of 3 x 3 ─> y
IMAGES = OpGraph(
    "images",
    {"x": IMAGE},
    {"y": NAMES[-1]},
    {"w": WEIGHT},
    tuple(
        Operator(
            name, "aten.convolution", (source, "w", ""), (name,),
            {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1},
        )
        for source, name in zip(["x", *NAMES], NAMES, strict=False)
    ),
    dict.fromkeys(NAMES, IMAGE),
)  # fmt: skip


@pytest.mark.parametrize(
    ("on_two_us", "bands_us", "asked", "names"),
    [
        (100.0, 250.0, 1, [ONE_LANE, BANDS]),
        (100.0, 398.0, 1, [ONE_LANE]),  # no gain worth a comparison
        (53.0, 1.0, 0, [ONE_LANE]),  # what both halves of a band compute leaves none
    ],
)
def test_bands_are_measured_where_they_may_pay_and_compared_where_they_do(
    on_two_us: float, bands_us: float, asked: int, names: list[str]
) -> None:
    with_bands: list[object] = []

    async def ask(request: MeasureInPlace) -> LaunchLatencies:
        with_bands.extend(plan.bands for plan in request.plans if plan.bands)
        return LaunchLatencies(
            tuple(
                (bands_us,)
                if plan.bands
                else tuple(100.0 if team.threads == 1 else on_two_us for team in plan.launches)
                for plan in request.plans
            )
        )

    work: Any = SimpleNamespace(device=SimpleNamespace(ask=ask, find_state=far))
    plans = asyncio.run(plans_of_teams(cast(Work, work), ProgramKey("d", ()), IMAGES, 2)).planned

    assert len(with_bands) == asked
    assert [plan.planner for plan in plans] == names
    for plan in plans[1:]:
        assert plan.plan.bands == ((0, 1, 2, 3),)
        assert plan.predicted_us == bands_us
