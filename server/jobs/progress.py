"""How far a job has come: one number for the whole job, and when it will end.

A job is a row of phases with fixed shares of the progress bar; measuring takes nearly all of a
batch size's time and so nearly all of its share.

    |import|load|  batch size 1                     |  batch size 4                     |
                |profile ............ |search|verify|
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from server.store.records import JobState

IMPORT_ENDS = 0.10
LOAD_ENDS = 0.15
PROFILE_ENDS = 0.85  # of the share of one batch size
SEARCH_ENDS = 0.90

VERIFY_SECONDS = 3.0  # a comparison of two plans takes about this long

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

    seconds: float = 0.0
    count: int = 0

    def add(self, seconds: float) -> None:
        """Take one more measurement into account."""
        self.seconds += seconds
        self.count += 1

    def seconds_for(self, measurements: int) -> float:
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
        """``done`` of ``total`` stages are known."""
        fraction = PROFILE_ENDS * done / total if total else PROFILE_ENDS
        self.tell(
            JobState.PROFILING,
            self.at(fraction),
            f"{self.label}: measuring stages",
            done=done,
            total=total,
            eta_seconds=self._eta_seconds(total - done, total),
        )

    def scheduling(self, total: int) -> None:
        """The planner searches; it asked for ``total`` stages."""
        eta_seconds = self._eta_seconds(0, total)
        self.tell(
            JobState.SCHEDULING,
            self.at(PROFILE_ENDS),
            f"{self.label}: searching",
            eta_seconds=eta_seconds,
        )

    def verifying(self, total: int) -> None:
        """The plan is compared with the sequential one."""
        eta_seconds = self._eta_seconds(0, total)
        self.tell(
            JobState.VERIFYING,
            self.at(SEARCH_ENDS),
            f"{self.label}: verifying",
            eta_seconds=eta_seconds,
        )

    def comparing(self, fraction: float) -> None:
        """Whole models run against each other."""
        at = SEARCH_ENDS + (1.0 - SEARCH_ENDS) * fraction
        detail = f"{self.label}: comparing whole models"
        self.tell(JobState.VERIFYING, self.at(at), detail)

    def _eta_seconds(self, left: int, total: int) -> float:
        """Time for what is left here; the later batch sizes take as much as this one."""
        later = self.of - self.index - 1
        measuring = self.rate.seconds_for(left + total * later)
        return UNKNOWN if measuring < 0 else measuring + VERIFY_SECONDS * (later + 1)

    def finished(self) -> None:
        """This batch size is done, one way or the other."""
        self.tell(JobState.VERIFYING, self.at(1.0), f"{self.label}: done")
