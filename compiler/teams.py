"""Plans that choose the threads of each unit, as more candidates of a network of short units.

    graph ──MeasureInPlace──> times of units as plans run ──cheapest path──> teams, bands
                                             └─all on one thread─> one-lane

Where units are short, what they exchange between cores takes as long as they do, and longer where
the cores are far from one another. Then one thread may be faster than all, and so may bands of rows
of an image, between which nothing is exchanged. Where units are long none is, and nothing is
measured.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from braid.compiler.work import Work
from braid.core.device_state import lanes_near_first
from braid.core.errors import InvalidArtefact
from braid.core.graph import OpGraph
from braid.core.margins import TEAM_GAIN
from braid.core.plan import StreamPlan, plan_of_teams, sequential_plan
from braid.core.program import ProgramKey
from braid.engine.link.messages import MeasureInPlace
from braid.engine.program.bands import is_piece, parts_of_bands, pieces_of
from braid.scheduler.planners import Planned
from braid.scheduler.teams import (
    cheapest,
    cheapest_spans,
    plans_to_measure,
    spans_to_measure,
    team_sizes,
)

log = logging.getLogger("braid.jobs")

ONE_LANE = "one-lane"

TEAMS = "teams"

BANDS = "bands"

TINY_US = 2000.0
"""A network that takes less under the sequential plan has the plan of one lane as candidate ..."""

SHORT_UNIT_US = 200.0
"""... and so has one of which a unit takes less on all threads, in the mean. An exchange between
two cores that are far from one another takes 10 to 100 us (AMD EPYC Zen 5, 370 ns a round trip)."""

MOST_ON_ONE = 1.5
"""Other runtimes are compared on one thread, too, where own kernels on one take at most so many
times as long as on all: with near cores it is 1.7 to 1.8, with far ones 1.0 to 1.3."""


def is_short(sequential_us: float | None, units: int) -> bool:
    """Whether one thread may run a network as fast as all, by its time under the latter."""
    return sequential_us is not None and sequential_us <= max(TINY_US, SHORT_UNIT_US * units)


@dataclass(frozen=True, slots=True)
class PlansOfTeams:
    """Candidates, and whether other runtimes stand beside them on one thread, too."""

    planned: Sequence[Planned]
    on_one_thread: bool = True


async def plans_of_teams(
    work: Work, program: ProgramKey, graph: OpGraph, threads: int
) -> PlansOfTeams:
    """The plan of one lane, and those of teams and bands that promise to be faster than others.

    Args:
        work: whose device measures.
        program: on its chosen kernels.
        graph: of the program, short.
        threads: of the device, several.
    """
    units = len(graph)
    one_lane = Planned(ONE_LANE, plan_of_teams([1] * units), ())
    near = lanes_near_first((await work.device.find_state()).name, threads)
    sizes = team_sizes(threads, near)
    uniform, mixed = plans_to_measure(units, sizes)
    measured = await _in_place(work, program, map(plan_of_teams, uniform))
    if not measured:
        return PlansOfTeams([one_lane])
    by_size = dict(zip(sizes, measured, strict=True))
    one_us, all_us = by_size[1], by_size[threads]
    least_us = (1 - TEAM_GAIN) * min(sum(one_us), sum(all_us))
    planned = [replace(one_lane, predicted_us=sum(one_us))]
    if sum(map(min, zip(*measured, strict=True))) <= least_us:
        measured += await _in_place(work, program, map(plan_of_teams, mixed))
        teams, predicted_us = cheapest([*uniform, *mixed], measured)
        if len(set(teams)) > 1 and predicted_us <= least_us:
            planned.append(Planned(TEAMS, plan_of_teams(teams), (), predicted_us))
    sets = spans_to_measure(pieces_of(graph, threads), partial(is_piece, graph))
    bounds_us = [_least_of_bands(graph, spans, threads, one_us, all_us) for spans in sets]
    if sets and cheapest_spans(sets, bounds_us, all_us)[1] <= least_us:
        bands = await _plan_of_bands(work, program, sets, all_us)
        if bands is not None and (bands.predicted_us or 0.0) <= least_us:
            planned.append(bands)
    return PlansOfTeams(planned, sum(one_us) <= MOST_ON_ONE * sum(all_us))


async def _in_place(
    work: Work, program: ProgramKey, plans: Iterable[StreamPlan]
) -> list[Sequence[float]]:
    return list((await work.device.ask(MeasureInPlace(program, tuple(plans)))).launches_us)


def _least_of_bands(
    graph: OpGraph,
    spans: Sequence[range],
    threads: int,
    one_us: Sequence[float],
    all_us: Sequence[float],
) -> list[float]:
    """Times of what a plan with bands launches, if a band took its part of one thread's time."""
    launches_us, at = list[float](), 0
    for span in spans:
        launches_us += all_us[at : span.start]
        launches_us.append(
            max(
                sum(one_us[unit] * part for unit, part in zip(span, parts, strict=True))
                for parts in parts_of_bands(graph, span, threads)
            )
        )
        at = span.stop
    return [*launches_us, *all_us[at:]]


async def _plan_of_bands(
    work: Work,
    program: ProgramKey,
    sets: Sequence[Sequence[range]],
    units_us: Sequence[float],
) -> Planned | None:
    """The plan of the cheapest bands, by the times of units on all threads; None: of none."""
    units = len(units_us)
    try:
        measured = await _in_place(work, program, (_in_bands(units, spans) for spans in sets))
    except InvalidArtefact as error:
        log.info("no bands", extra={"reason": str(error)})
        return None
    spans, predicted_us = cheapest_spans(sets, measured, units_us)
    facts = {"spans": [[span.start, span.stop] for span in spans], "predicted_us": predicted_us}
    log.info("bands measured", extra=facts)
    return Planned(BANDS, _in_bands(units, spans), (), predicted_us) if spans else None


def _in_bands(units: int, spans: Sequence[range]) -> StreamPlan:
    return replace(sequential_plan(units), bands=tuple(map(tuple, spans)))
