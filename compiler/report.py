"""What a compilation tells of its progress, one class a fact.

Cancellation goes the other way: the task that compiles is cancelled, and with it what it measures.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profiling:
    """``done`` of the ``total`` latencies that any search needs are there."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Calibrating:
    """Ranges of integers are taken from samples."""

    fraction: float  # done, 0 to 1


@dataclass(frozen=True, slots=True)
class Searching:
    """The planner searches."""

    measured: int  # stages, up to now


@dataclass(frozen=True, slots=True)
class Comparing:
    """Whole models run against each other."""

    fraction: float  # done, 0 to 1


@dataclass(frozen=True, slots=True)
class Retrying:
    """A call is made again."""

    what: str  # for people


@dataclass(frozen=True, slots=True)
class StageMeasured:
    """A stage was measured."""

    seconds: float  # that it took


@dataclass(frozen=True, slots=True)
class StagesReused:
    """Latencies of stages were in the cache."""

    count: int


Event = Profiling | Calibrating | Searching | Comparing | Retrying | StageMeasured | StagesReused

Report = Callable[[Event], None]
"""Takes what a compilation tells; what it raises ends the compilation."""
