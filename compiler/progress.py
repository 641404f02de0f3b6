"""How far a job has come: one number for the whole job, and when it will end.

    |import|load|  batch size 1               |  batch size 8                        |
                |profile|search|compare ......|profile|search|compare ...............|

Phases of unknown length follow on each other, so progress is time: what has passed over what has
passed and is expected. What is expected of a phase comes from the phases before it, until it can
say itself how far it is; of a later batch size, from the first one.
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from braid.compiler.report import (
    Calibrating,
    Comparing,
    Event,
    Profiling,
    Retrying,
    Searching,
    StageMeasured,
    StagesReused,
)

IMPORT_ENDS = 0.10
LOAD_ENDS = 0.15

UNKNOWN = -1.0

PROFILES_A_SEARCH = 1.5  # a search takes this many times as long as measuring the units: 0.4 to 6
PROFILES_A_COMPARISON = 3.0  # and comparing the plans it leads to this many: 1.5 to 7 ...
ROUNDS_S, PROFILES_A_CHECK = 20.0, 0.3  # ... but no longer than its rounds, and checking outputs
LEAST_COMPARISON_S = 1.0
COMPARISON_GROWTH = 0.5  # with profiling, while rounds end by their limit in time; else it is 1
GROWTH = 0.35  # of time with the batch: eight rows take about twice as long as one

REPORT_EVERY_S = 0.02


class Phase(enum.Enum):
    """What a job is doing. Values are those of a server's job."""

    IMPORTING = "IMPORTING"  # upload to artefact, then loaded
    PROFILING = "PROFILING"  # stages are measured on the device
    SCHEDULING = "SCHEDULING"  # the planner searches
    VERIFYING = "VERIFYING"  # the plan is compared with the sequential one


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """Progress of a job."""

    phase: Phase
    progress: float  # of the whole job, 0 to 1
    detail: str  # what is being done, for people
    done: int = 0  # of ``total``, in the present phase
    total: int = 0
    eta_seconds: float = UNKNOWN  # until the job ends


ReportProgress = Callable[[ProgressReport], None]
"""Takes what a job reports."""


@dataclass(slots=True)
class Forecast:
    """Seconds until all batch sizes of a job are done, from what the first ones took.

    ``sizes`` are the batch sizes in order, once for each device; ``budget_s`` is the longest that
    a search may take, in seconds, or None.
    """

    sizes: Sequence[int]
    budget_s: float | None = None
    clock: Callable[[], float] = monotonic
    began: float = field(init=False)
    taken_s: list[float] = field(default_factory=list)  # by the batch sizes that are done
    size_began: float = field(init=False)
    phase_began: float = field(init=False)
    rounds_began: float = field(init=False)
    rounds_from: float = 0.0  # how far the comparison was when it was first told
    profile_s: float = 0.0  # what profiling takes in the present batch size, as far as known
    search_ratio: float = PROFILES_A_SEARCH  # expected of a search, in profiles; learnt
    compared_s: float = 0.0  # what the latest comparison took ...
    compared_profile_s: float = 1.0  # ... after this long a profiling

    def __post_init__(self) -> None:
        self.began = self.size_began = self.phase_began = self.rounds_began = self.clock()

    def begin_batch_size(self) -> None:
        self.size_began = self.phase_began = self.clock()
        self.profile_s = 0.0

    def begin_phase(self) -> None:
        self.phase_began = self.clock()

    def begin_comparison(self) -> None:
        now = self.clock()
        if self.profile_s:
            measured = (now - self.phase_began) / self.profile_s
            self.search_ratio = PROFILES_A_SEARCH**0.25 * measured**0.75
        self.phase_began, self.rounds_from = now, 0.0

    def end_batch_size(self) -> None:
        now = self.clock()
        self.taken_s.append(now - self.size_began)
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
        """Seconds left of the job while plans are searched; the number of stages is not known."""
        elapsed = self.clock() - self.phase_began
        left = max(self._search_s() - elapsed, 0.3 * elapsed)
        return self._later(left + self._comparison_s())

    def comparing(self, fraction: float) -> float:
        """Seconds left of the job while whole models run against each other.

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
        """Progress of the whole job, 0 to 1, when ``left_s`` seconds are left."""
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
        """Expected seconds of the present batch size, from those of the one before it."""
        here = len(self.taken_s)
        return self.taken_s[-1] * _growth(self.sizes[here - 1], self.sizes[here])

    def _later(self, left_s: float) -> float:
        """Seconds left with the batch sizes that follow, each by how much larger it is."""
        here = len(self.taken_s)
        whole = self.clock() - self.size_began + left_s
        later = self.sizes[here + 1 :]
        return left_s + whole * sum(_growth(self.sizes[here], size) for size in later)


def _growth(size: int, other: int) -> float:
    """Ratio of the time of batch size ``other`` to that of ``size``."""
    return float((other / size) ** GROWTH)


def batch_size_label(size: int, device: str = "", shapes: str = "") -> str:
    """Text that begins the details of a batch size's progress.

    ``device``: one of several; ``shapes``: extents, of others than the main shape.
    """
    parts = (f"batch size {size}", shapes and f"at {shapes}", device and f"on {device}")
    return " ".join(filter(None, parts))


@dataclass(slots=True)
class BatchSizeProgress:
    """Part of a job's progress that belongs to one batch size on one device."""

    report: ReportProgress
    label: str  # "batch size 4"
    forecast: Forecast
    reported_at: float = float("-inf")
    step: str = ""
    phase: Phase = Phase.PROFILING  # as reported last
    is_brief: bool = False

    def __call__(self, event: Event) -> None:
        if self.is_brief:
            return
        forecast, step = self.forecast, self.step
        match event:
            case Profiling(done, total):
                if step == "calibrating":
                    forecast.begin_phase()
                left_s = forecast.profiling(done, total)
                self._report("profiling", Phase.PROFILING, "measuring stages", left_s, done, total)
            case Calibrating(fraction):
                what, done = "calibrating on samples", round(100 * fraction)
                self._report("calibrating", Phase.PROFILING, what, UNKNOWN, done, 100)
            case Searching(measured):
                if step != "searching":
                    forecast.begin_phase()
                what, left_s = f"searching, {measured} stages measured", forecast.searching()
                self._report("searching", Phase.SCHEDULING, what, left_s, measured)
            case Comparing(fraction):
                if step != "comparing":
                    forecast.begin_comparison()
                left_s = forecast.comparing(fraction)
                self._report("comparing", Phase.VERIFYING, "comparing whole models", left_s)
            case Retrying(what):
                self.retrying(what)
            case StageMeasured() | StagesReused():
                pass  # shown by the counts of the others

    def waiting(self) -> None:
        self._report("waiting", Phase.PROFILING, "waiting for the device", UNKNOWN)

    def waiting_for_node(self) -> None:
        """Report that another node makes the schedule of the same bytes."""
        what = "waiting for another node that measures the same"
        self._report("elsewhere", Phase.PROFILING, what, UNKNOWN)

    def begun(self, *, is_brief: bool = False) -> None:
        """Begin the batch size; of what is measured briefly nothing more is told."""
        self.is_brief = is_brief
        if is_brief:
            self._report("briefly", Phase.VERIFYING, "measuring whether it pays", UNKNOWN)
        else:
            self.forecast.begin_batch_size()

    def retrying(self, what: str) -> None:
        """Report that a call is made again; the phase stays."""
        self.reported_at = float("-inf")  # what comes next is reported at once
        self.report(ProgressReport(self.phase, LOAD_ENDS, f"{self.label}: {what}"))

    def finished(self) -> None:
        """End the batch size, with a schedule or without."""
        self.forecast.end_batch_size()
        self.step = "finished"

    def _report(
        self, step: str, phase: Phase, what: str, left_s: float, done: int = 0, total: int = 0
    ) -> None:
        """Report, unless the same step was reported less than ``REPORT_EVERY_S`` ago."""
        now = self.forecast.clock()
        is_new = step != self.step
        self.step, self.phase = step, phase
        if is_new or now >= self.reported_at + REPORT_EVERY_S:
            self.reported_at = now
            progress = self.forecast.progress(left_s)
            text = f"{self.label}: {what}"
            self.report(ProgressReport(phase, progress, text, done, total, left_s))
