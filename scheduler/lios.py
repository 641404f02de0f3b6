"""LIOS: list scheduling by latency (Latency-based Inter-Operator Scheduling, IEEE TSC 2024).

Algorithm 1 of the paper: of the ready units, take the one with the longest latency and put it on
the stream on which it finishes first. Ties go to the lower unit and to the lower stream, as in
the worked example of Table III.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from braid.scheduler.problem import Problem
from braid.scheduler.streams import StreamSchedule


@dataclass(frozen=True, slots=True)
class Placement:
    """One schedule tuple of the paper (definition 6): a unit, where and when it runs."""

    unit: int
    stream: int
    start_us: float
    finish_us: float


def lios(problem: Problem) -> StreamSchedule:
    """Schedule the whole graph; the launch order is the order of scheduling."""
    placed = place(
        problem.unit_latencies_us(), problem.units.predecessors, problem.options.max_streams
    )
    streams: list[list[int]] = [[] for _ in range(problem.options.max_streams)]
    for placement in placed:
        streams[placement.stream].append(placement.unit)
    return StreamSchedule(
        launch_order=tuple(placement.unit for placement in placed),
        streams=tuple(tuple(units) for units in streams if units),
    )


def place(
    latency_us: Sequence[float], predecessors: Sequence[Sequence[int]], streams: int
) -> list[Placement]:
    """Place each unit, in the order of Algorithm 1. Takes O(streams * n^2)."""
    free = [0.0] * streams
    finish: dict[int, float] = {}
    placed: list[Placement] = []
    waiting = [unit for unit, row in enumerate(predecessors) if not row]
    listed = set(waiting)
    while waiting:
        unit = max(waiting, key=lambda unit: (latency_us[unit], -unit))
        ready = max((finish[p] for p in predecessors[unit]), default=0.0)
        start, stream = min((max(free[s], ready), s) for s in range(streams))
        finish[unit] = free[stream] = start + latency_us[unit]
        placed.append(Placement(unit, stream, start, finish[unit]))
        waiting.remove(unit)
        for other, row in enumerate(predecessors):
            if other not in listed and all(p in finish for p in row):
                waiting.append(other)
                listed.add(other)
    return placed
