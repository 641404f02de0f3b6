"""How many threads each unit of a sequence runs on, by an exact dynamic program.

    plans in which neighbours have every pair of team sizes ──measured in place──> cheapest path

A unit that is alone in a loop finds its weights and its input at hand, and its team awake. In a
plan it finds the caches as the unit before left them: where that ran on other threads, what it
wrote has to come from their cores, and a barrier of a larger team takes longer, the farther its
cores are. So a unit's time depends on its own team and on that of the unit before it, and both are
measured as the plan runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from math import inf

Teams = tuple[int, ...]
"""Threads of each unit, in the order in which units run."""

SWITCH_US = 2.0
"""Time that each change of the team must save: less is noise of the measurement."""


def team_sizes(threads: int, near: int) -> list[int]:
    """Sizes to choose from: powers of two within a group of ``near`` lanes, that group, and all.

    A team is as large as it is told to be, and always begins with the first lane.
    """
    powers = [1 << power for power in range(near.bit_length()) if 1 << power < near]
    return sorted({*powers, near, threads})


def plans_to_measure(units: int, sizes: Sequence[int]) -> tuple[list[Teams], list[Teams]]:
    """Plans in which each unit has each size behind each size: the uniform ones, and the others."""
    uniform = [(size,) * units for size in sizes]
    pairs = [pair for one, other in combinations(sizes, 2) for pair in ((one, other), (other, one))]
    return uniform, [tuple(pair[unit % 2] for unit in range(units)) for pair in pairs]


def cheapest(
    plans: Sequence[Teams], units_us: Sequence[Sequence[float]], switch_us: float = SWITCH_US
) -> tuple[Teams, float]:
    """The team of each unit so that all together take least, and what they take.

    Where T(u, a, b) is the time of unit u on team b after a unit on team a:

        best(u, b) = min over a of  best(u - 1, a) + T(u, a, b) + [a != b] switch_us

    Args:
        plans: of ``plans_to_measure``.
        units_us: of each plan, the time of each of its units in microseconds.
        switch_us: see ``SWITCH_US``; it is not part of what is returned.

    Cost: units * sizes ** 2.
    """
    times_us: list[dict[tuple[int, int], float]] = [{} for _ in plans[0]]
    for teams, plan_us in zip(plans, units_us, strict=True):
        for unit, (before, team) in enumerate(zip((0, *teams), teams, strict=False)):
            known_us = times_us[unit].get((before, team), inf)
            times_us[unit][before, team] = min(known_us, plan_us[unit])
    paths: dict[int, tuple[float, float, Teams]] = {0: (0.0, 0.0, ())}  # by the last team
    for time_us in times_us:
        reached: dict[int, tuple[float, float, Teams]] = {}
        for (before, team), us in time_us.items():
            if before not in paths:
                continue
            cost_us, spent_us, path = paths[before]
            cost_us += us + switch_us * (before not in (0, team))
            if team not in reached or cost_us < reached[team][0]:
                reached[team] = cost_us, spent_us + us, (*path, team)
        paths = reached
    _, predicted_us, path = min(paths.values())
    return path, predicted_us


def spans_to_measure(
    pieces: Sequence[range], may_run_as_one: Callable[[range], bool] = lambda span: True
) -> list[tuple[range, ...]]:
    """Sets of disjoint spans in which every row of neighbouring pieces stands as one span.

    A span has at least two units. ``may_run_as_one`` says no where a value inside is read later, as
    skip connections do: such a span is in no set.
    """
    sets: list[tuple[range, ...]] = []
    for length in range(1, len(pieces) + 1):
        for first in range(length):
            starts = range(first, len(pieces) - length + 1, length)
            spans = [range(pieces[at].start, pieces[at + length - 1].stop) for at in starts]
            several = tuple(span for span in spans if len(span) > 1 and may_run_as_one(span))
            if several:
                sets.append(several)
    return sets


def cheapest_spans(
    sets: Sequence[Sequence[range]],
    launches_us: Sequence[Sequence[float]],
    units_us: Sequence[float],
) -> tuple[list[range], float]:
    """The disjoint spans that run as one so that all units together take least, and what they take.

    best(u) = min of  best(u - 1) + T(u)  and, over spans that end with u,  best(start) + T(span)

    Args:
        sets: of ``spans_to_measure``.
        launches_us: with each set, the time of each launch in order; a span is one of them.
        units_us: of each unit by itself.
    """
    span_us: dict[range, float] = {}
    for spans, plan_us in zip(sets, launches_us, strict=True):
        skipped = 0
        for span in spans:
            span_us[span] = plan_us[span.start - skipped]
            skipped += len(span) - 1
    best: list[tuple[float, list[range]]] = [(0.0, [])]
    for unit, us in enumerate(units_us):
        best_us, path = best[unit]
        ways = [(best_us + us, path)]
        for span, took_us in span_us.items():
            if span.stop == unit + 1:
                before_us, before = best[span.start]
                ways.append((before_us + took_us, [*before, span]))
        best.append(min(ways, key=lambda way: way[0]))
    predicted_us, chosen = best[-1]
    return chosen, predicted_us
