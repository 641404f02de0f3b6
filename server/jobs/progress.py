"""How far a job has come: one number for the whole job, and when it will end.

    |import|load|  batch size 1               |  batch size 8                        |
                |profile|search|compare ......|profile|search|compare ...............|

Phases of unknown length follow on each other, so progress is time: what has passed over what has
passed and is expected. What is expected of a phase comes from the phases before it, until it can
say itself how far it is; of a later batch size, from the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol

from braid.server.store.records import JobStatus

IMPORT_ENDS = 0.10
LOAD_ENDS = 0.15

UNKNOWN = -1.0

PROFILES_A_SEARCH = 1.5  # a search takes this many times as long as measuring the units: 0.4 to 6
PROFILES_A_COMPARISON = 3.0  # and comparing the plans it leads to this many: 1.5 to 7 ...
ROUNDS_S, PROFILES_A_CHECK = 20.0, 0.3  # ... but no longer than its rounds, and checking outputs
LEAST_COMPARISON_S = 1.0
COMPARISON_GROWTH = 0.5  # with profiling, while rounds end by their limit in time; else it is 1
GROWTH = 0.35  # of time with the batch: eight rows take about twice as long as one

TELL_EVERY_S = 0.02


class ReportProgress(Protocol):
    """Where a job reports to."""

    def __call__(
        self,
        state: JobStatus,
        progress: float,
        detail: str,
        *,
        done: int = 0,
        total: int = 0,
        eta_seconds: float = UNKNOWN,
    ) -> None:
        """Take a report; ``progress`` is that of the whole job."""


@dataclass(slots=True)
class Forecast:
    """When a job's batch sizes will be done, from what they have taken so far.

    ``sizes`` are the batch sizes in order, once for each device; ``budget_s`` is the longest that
    a search may take, if there is a limit.
    """

    sizes: Sequence[int]
    budget_s: float | None = None
    clock: Callable[[], float] = monotonic
    began: float = field(init=False)
    taken_s: list[float] = field(default_factory=list)  # by the batch sizes that are done
    share_began: float = field(init=False)
    phase_began: float = field(init=False)
    rounds_began: float = field(init=False)
    rounds_from: float = 0.0  # how far the comparison was when it was first told
    profile_s: float = 0.0  # what profiling takes in the present batch size, as far as known
    search_ratio: float = PROFILES_A_SEARCH  # expected of a search, in profiles; learnt
    compared_s: float = 0.0  # what the latest comparison took ...
    compared_profile_s: float = 1.0  # ... after this long a profiling

    def __post_init__(self) -> None:
        self.began = self.share_began = self.phase_began = self.rounds_began = self.clock()

    def begin_share(self) -> None:
        """The next batch size begins."""
        self.share_began = self.phase_began = self.clock()
        self.profile_s = 0.0

    def begin_search(self) -> None:
        """The units of the present batch size are measured."""
        self.phase_began = self.clock()

    def begin_comparison(self) -> None:
        """The present batch size has been searched."""
        now = self.clock()
        if self.profile_s:
            seen = (now - self.phase_began) / self.profile_s
            self.search_ratio = PROFILES_A_SEARCH**0.25 * seen**0.75
        self.phase_began, self.rounds_from = now, 0.0

    def end_share(self) -> None:
        """The present batch size is done."""
        now = self.clock()
        self.taken_s.append(now - self.share_began)
        if self.profile_s:
            self.compared_s, self.compared_profile_s = now - self.phase_began, self.profile_s

    def profiling(self, done: int, total: int) -> float:
        """Seconds left of the job while ``done`` of ``total`` units are measured."""
        elapsed = self.clock() - self.phase_began
        if not done:
            return UNKNOWN if not self.taken_s else self._later(self._expected())
        self.profile_s = elapsed * total / done
        whole = self.profile_s + self._search_s() + self._comparison_s()
        if self.taken_s:  # the first units say little yet
            whole += (self._expected() - whole) * (1 - done / total)
        return self._later(max(whole - elapsed, 0.0))

    def searching(self) -> float:
        """The same while stages are searched; nobody knows how many more it takes."""
        elapsed = self.clock() - self.phase_began
        left = max(self._search_s() - elapsed, 0.3 * elapsed)
        return self._later(left + self._comparison_s())

    def comparing(self, fraction: float) -> float:
        """The same while whole models run against each other.

        First each one's outputs are checked, which is not part of ``fraction``.
        """
        now = self.clock()
        if not self.rounds_from:
            self.rounds_began, self.rounds_from = now, fraction
        done = fraction - self.rounds_from
        if done < 0.1:
            elapsed = now - self.phase_began
            return self._later(max(self._comparison_s() - elapsed, 0.2 * elapsed))
        return self._later((now - self.rounds_began) * (1 - fraction) / done)

    def progress(self, left_s: float) -> float:
        """Of the whole job, when this many seconds are left."""
        if left_s < 0:
            return LOAD_ENDS
        passed = self.clock() - self.began
        return LOAD_ENDS + (1 - LOAD_ENDS) * passed / max(passed + left_s, 1e-9)

    def _search_s(self) -> float:
        guess = self.search_ratio * self.profile_s
        return guess if self.budget_s is None else min(guess, self.budget_s)

    def _comparison_s(self) -> float:
        most = ROUNDS_S + PROFILES_A_CHECK * self.profile_s
        usual = min(most, PROFILES_A_COMPARISON * self.profile_s)
        exponent = COMPARISON_GROWTH if self.compared_s < ROUNDS_S else 1.0
        growth = float((self.profile_s / self.compared_profile_s) ** exponent)
        return max(LEAST_COMPARISON_S, usual, self.compared_s * growth)

    def _expected(self) -> float:
        """Of the batch size at hand, from the one before it."""
        here = len(self.taken_s)
        return self.taken_s[-1] * _growth(self.sizes[here - 1], self.sizes[here])

    def _later(self, left_s: float) -> float:
        """With the batch sizes that follow; they take as long as this one, and more by growth."""
        here = len(self.taken_s)
        whole = self.clock() - self.share_began + left_s
        later = self.sizes[here + 1 :]
        return left_s + whole * sum(_growth(self.sizes[here], size) for size in later)


def _growth(size: int, other: int) -> float:
    """How many times as long one batch size takes as another."""
    return float((other / size) ** GROWTH)


@dataclass(slots=True)
class BatchSizeProgress:
    """The part of a job's progress that belongs to one batch size on one device."""

    report: ReportProgress
    label: str  # "batch size 4"
    forecast: Forecast
    told_at: float = float("-inf")
    phase: str = ""
    state: JobStatus = JobStatus.PROFILING  # as it was told last

    def waiting(self) -> None:
        """The device is busy with another job."""
        self._say("waiting", JobStatus.PROFILING, "waiting for the device", UNKNOWN)

    def begun(self) -> None:
        """The device is this job's; profiling begins."""
        self.forecast.begin_share()

    def profiling(self, done: int, total: int) -> None:
        """``done`` of ``total`` latencies are known that the planner is sure to need."""
        left = self.forecast.profiling(done, total)
        self._say("profiling", JobStatus.PROFILING, "measuring stages", left, done, total)

    def searching(self, measured: int) -> None:
        """The planner searches, and has had this many stages measured."""
        if self.phase != "searching":
            self.forecast.begin_search()
        left = self.forecast.searching()
        detail = f"searching, {measured} stages measured"
        self._say("searching", JobStatus.SCHEDULING, detail, left, measured)

    def comparing(self, fraction: float) -> None:
        """Whole models run against each other."""
        if self.phase != "comparing":
            self.forecast.begin_comparison()
        left = self.forecast.comparing(fraction)
        self._say("comparing", JobStatus.VERIFYING, "comparing whole models", left)

    def retrying(self, what: str) -> None:
        """Report that something is done again; the phase is the same."""
        self.told_at = float("-inf")  # what comes next is told at once
        self.report(self.state, LOAD_ENDS, f"{self.label}: {what}")

    def finished(self) -> None:
        """This batch size is done, one way or the other."""
        self.forecast.end_share()
        self.phase = "finished"

    def _say(
        self, phase: str, state: JobStatus, what: str, left_s: float, done: int = 0, total: int = 0
    ) -> None:
        """Report, unless that was done a moment ago."""
        now = self.forecast.clock()
        is_new = phase != self.phase
        self.phase, self.state = phase, state
        if is_new or now >= self.told_at + TELL_EVERY_S:
            self.told_at = now
            self.report(
                state,
                self.forecast.progress(left_s),
                f"{self.label}: {what}",
                done=done,
                total=total,
                eta_seconds=left_s,
            )
