"""Noise: stages whose order a measurement error could turn are measured again.

A *near-tie* is a state on the chosen path in which another ending is almost as good. Both are
measured again and their medians count from then on. The number of samples of a stage and of
rounds is limited, so noise can never keep a search going.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from braid.core.schedule import Stage
from braid.scheduler.problem import Problem
from braid.scheduler.stages import StageMemo, StageSpace

TIE = 0.02
"""Endings this close to the best one, relative to the stage, are a near-tie."""

SAMPLES = 3
"""No stage is measured more often."""

ROUNDS = 3
"""A search is repeated at most this often for the sake of near-ties."""


def near_ties(
    space: StageSpace, value_us: Mapping[int, float], cost_us: Mapping[int, float]
) -> set[int]:
    """Endings of near-ties along the best path, the best ones included.

    ``value_us``: latency by ending. ``cost_us``: latency of the best schedule by state.
    """
    ties: set[int] = set()
    S = space.endings.everything
    while S:
        last = space.endings.of(S)
        values = [cost_us[S ^ E] + value_us[E] for E in last]
        best = last[values.index(min(values))]
        limit = min(values) + TIE * value_us[best]
        close = [E for E, value in zip(last, values, strict=True) if value <= limit]
        ties.update(close if len(close) > 1 else ())
        S ^= best
    return ties


def measure_again(space: StageSpace, memo: StageMemo, endings: set[int]) -> int:
    """One more sample of each stage among ``endings`` that is measured but not often enough."""
    count = 0
    keys = set()
    for ending in sorted(endings):
        for variant in space.variants(ending):
            key = space.key(variant)
            if key in keys or key not in memo.latency_us:
                continue
            if len(memo.samples_us.get(key, (0,))) < SAMPLES:
                keys.add(key)
                memo.ask_again(key, space.stage(variant))
                count += 1
    return count


def spread(problem: Problem, stages: Sequence[Stage]) -> float | None:
    """Range of the samples over their median, summed over the stages measured several times."""
    ranges, medians = 0.0, 0.0
    for stage in stages:
        samples = problem.samples_us(stage)
        if len(samples) > 1:
            ranges += max(samples) - min(samples)
            medians += sorted(samples)[len(samples) // 2]
    return ranges / medians if medians else None
