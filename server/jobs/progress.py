"""How far a job has come: one number for the whole job, and when it will end.

A job is a row of phases with fixed shares of the progress bar; measuring takes nearly all of a
batch size's time and so nearly all of its share.

    |import|load|  batch size 1                     |  batch size 4                     |
                |profile ............ |search|verify|
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from server.store.records import JobState

IMPORT_ENDS = 0.10
LOAD_ENDS = 0.15
PROFILE_ENDS = 0.85  # of the share of one batch size
SEARCH_ENDS = 0.90

UNKNOWN = -1.0


class Tell(Protocol):
    """Where a job reports to."""

    def __call__(
        self,
        state: JobState,
        progress: float,
        detail: str,
        *,
        done: int = 0,
        total: int = 0,
        eta_seconds: float = UNKNOWN,
    ) -> None:
        """Take a report; ``progress`` is that of the whole job."""


@dataclass(slots=True)
class MeasuringRate:
    """Seconds a measurement takes in this job, from those made so far."""

    clock: Callable[[], float] = time.monotonic
    seconds: float = 0.0
    count: int = 0

    def eta_seconds(self, measurements: int) -> float:
        """Time for this many more, or UNKNOWN before the first."""
        return measurements * self.seconds / self.count if self.count else UNKNOWN


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a job's progress that belongs to one batch size on one device."""

    tell: Tell
    label: str  # "batch size 4"
    index: int  # among ``of`` shares
    of: int
    rate: MeasuringRate = field(default_factory=MeasuringRate)

    def at(self, fraction: float) -> float:
        """Progress of the whole job when this share is done to ``fraction``."""
        return LOAD_ENDS + (1.0 - LOAD_ENDS) * (self.index + fraction) / self.of

    def waiting(self) -> None:
        """The device is busy with another job."""
        self.tell(JobState.PROFILING, self.at(0.0), f"{self.label}: waiting for the device")

    def profiling(self, done: int, total: int) -> None:
        """``done`` of ``total`` stages are measured; the other batch sizes need as many each."""
        left = (total - done) + total * (self.of - self.index - 1)
        fraction = PROFILE_ENDS * done / total if total else PROFILE_ENDS
        self.tell(
            JobState.PROFILING,
            self.at(fraction),
            f"{self.label}: measuring stages",
            done=done,
            total=total,
            eta_seconds=self.rate.eta_seconds(left),
        )

    def scheduling(self) -> None:
        """The planner searches."""
        self.tell(JobState.SCHEDULING, self.at(PROFILE_ENDS), f"{self.label}: searching")

    def verifying(self) -> None:
        """The plan is compared with the sequential one."""
        self.tell(JobState.VERIFYING, self.at(SEARCH_ENDS), f"{self.label}: verifying")

    def finished(self, how: str) -> None:
        """This batch size is done."""
        self.tell(JobState.VERIFYING, self.at(1.0), f"{self.label}: {how}")
