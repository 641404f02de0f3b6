"""Differences between two schedules of one model: batch 1 against 32, CPU against GPU.

Units are matched by name, since another device may fuse other units. A stage of the first
schedule is *kept* if the second has one with the same units, groups and strategy; *regrouped* if
only the units agree; *joined* if the second runs its units in one stage with others; else they are
*spread* over several stages, and the difference says which.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from braid.core.schedule import Schedule, Stage

Names = frozenset[str]


@dataclass(frozen=True, slots=True)
class StageChange:
    """Change of one stage of the first schedule in the second."""

    stage: int  # in the first schedule, from 1
    change: str  # "kept" | "regrouped" | "merged differently" | "joined" | "spread"
    others: tuple[int, ...]  # the stages of the second schedule that hold its units
    latency_us: float | None
    other_latency_us: float | None  # of those stages together


@dataclass(frozen=True, slots=True)
class Difference:
    """Two schedules side by side."""

    first: Schedule
    second: Schedule
    stages: tuple[StageChange, ...]
    only_first: tuple[str, ...]  # units that the second does not have
    only_second: tuple[str, ...]

    @property
    def kept(self) -> int:
        return sum(change.change == "kept" for change in self.stages)

    @property
    def is_same(self) -> bool:
        """True if both run the same units in the same stages and streams."""
        same_plan = (self.first.unit_names, self.first.plan) == (
            self.second.unit_names,
            self.second.plan,
        )
        return same_plan and self.kept == len(self.stages) == len(self.second.stages)


def compare(first: Schedule, second: Schedule) -> Difference:
    mine, theirs = set(first.unit_names), set(second.unit_names)
    return Difference(
        first,
        second,
        tuple(_changes(first, second)),
        tuple(name for name in first.unit_names if name not in theirs),
        tuple(name for name in second.unit_names if name not in mine),
    )


def _changes(first: Schedule, second: Schedule) -> Iterator[StageChange]:
    holds = {
        name: number
        for number, stage in enumerate(second.stages, start=1)
        for name in _units(second, stage)
    }
    for number, stage in enumerate(first.stages, start=1):
        units = _units(first, stage)
        others = tuple(sorted({holds[name] for name in units if name in holds}))
        latencies = [second.stages[other - 1].latency_us for other in others]
        measured = [us for us in latencies if us is not None]
        other_us = sum(measured) if measured and len(measured) == len(latencies) else None
        change = _change(first, stage, second, others)
        yield StageChange(number, change, others, stage.latency_us, other_us)


def _change(first: Schedule, stage: Stage, second: Schedule, others: tuple[int, ...]) -> str:
    if len(others) != 1:
        return "spread"
    other = second.stages[others[0] - 1]
    if _units(first, stage) != _units(second, other):
        return "joined" if _units(first, stage) < _units(second, other) else "spread"
    if stage.strategy != other.strategy:
        return "merged differently"
    return "kept" if _groups(first, stage) == _groups(second, other) else "regrouped"


def _units(schedule: Schedule, stage: Stage) -> Names:
    return frozenset(schedule.unit_names[unit] for unit in stage.operators)


def _groups(schedule: Schedule, stage: Stage) -> frozenset[tuple[str, ...]]:
    return frozenset(tuple(schedule.unit_names[unit] for unit in group) for group in stage.groups)
