"""Plans that choose how many threads each unit runs on, as more candidates of a small network.

    graph ──MeasureTeams──> device ──cheapest path──> teams
                                   └─all on one thread─> one-lane

Where units are short, what they exchange between cores takes as long as they do, and longer where
the cores are far from one another: then one thread may be faster than all. Where they are long it
is not, and nothing is measured.
"""

from __future__ import annotations

from braid.compiler.work import Work
from braid.core.graph import OpGraph
from braid.core.plan import plan_of_teams
from braid.core.program import ProgramKey
from braid.engine.link.messages import MeasureTeams
from braid.scheduler.planners import Planned
from braid.scheduler.teams import cheapest, plans_to_measure, team_sizes

ONE_LANE = "one-lane"

PLANNER = "teams"

TINY_US = 2000.0
"""A network that takes less under the sequential plan has the plan of one lane as candidate ..."""

SHORT_UNIT_US = 200.0
"""... and so has one of which a unit takes less on all threads, in the mean. An exchange between
two cores that are far from one another takes 10 to 100 us (AMD EPYC Zen 5, 370 ns a round trip)."""

LEAST_GAIN = 0.97
"""Chosen teams are compared if they are to take less than this part of what all threads take."""


def is_short(sequential_us: float | None, units: int) -> bool:
    """Whether one thread may run a network as fast as all, by its time under the latter."""
    return sequential_us is not None and sequential_us <= max(TINY_US, SHORT_UNIT_US * units)


async def plans_of_teams(
    work: Work, program: ProgramKey, graph: OpGraph, threads: int
) -> list[Planned]:
    """The plan of one lane, and that of chosen teams if it promises to be faster than both.

    Args:
        work: whose device measures.
        program: on its chosen kernels.
        graph: of the program, short.
        threads: of the device, several.
    """
    units = len(graph)
    plans = plans_to_measure(units, team_sizes(threads, threads))
    measured = (await work.device.ask(MeasureTeams(program, tuple(plans)))).units_us
    if not measured:
        return [Planned(ONE_LANE, plan_of_teams([1] * units), ())]
    one_us, all_us = (sum(measured[plans.index((team,) * units)]) for team in (1, threads))
    one_lane = Planned(ONE_LANE, plan_of_teams([1] * units), (), one_us)
    teams, predicted_us = cheapest(plans, measured)
    if len(set(teams)) == 1 or predicted_us > LEAST_GAIN * min(one_us, all_us):
        return [one_lane]
    return [one_lane, Planned(PLANNER, plan_of_teams(teams), (), predicted_us)]
