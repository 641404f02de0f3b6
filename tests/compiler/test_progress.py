"""Progress and remaining time of a job, against how long its phases really took."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from braid.compiler.progress import UNKNOWN, BatchSizeProgress, Forecast, ProgressReport
from braid.compiler.report import Comparing, Profiling, Searching
from tests.clock import SetClock

# Seconds of measuring units, searching and comparing, as seen at registrations on two cores.
INCEPTION = (8.3, [(5.0, 5.4, 12.3), (8.0, 21.0, 18.0)], (1, 8))
SQUEEZENET = (4.0, [(1.1, 0.4, 1.8)], (1,))
NASNET = (80.0, [(15.0, 40.0, 22.0)], (1,))
NASNET_LARGE = (26.8, [(3.4, 19.2, 22.1), (11.5, 25.0, 79.8)], (1, 8))
GOOGLENET = (5.1, [(1.3, 7.0, 3.4), (2.4, 13.3, 11.6)], (1, 8))
JOBS = {
    "two": INCEPTION,
    "small": SQUEEZENET,
    "mobile": NASNET,
    "large": NASNET_LARGE,
    "searching": GOOGLENET,
}


@dataclass
class Report:
    at: float
    progress: float
    eta_seconds: float


def reports(
    load_s: float, phases: Sequence[tuple[float, float, float]], sizes: Sequence[int]
) -> Iterator[Report]:
    """What a job tells that goes through these phases, a hundred times in each."""
    clock = SetClock()
    told: list[Report] = []

    def tell(now: ProgressReport) -> None:
        told.append(Report(load_s + clock.now, now.progress, now.eta_seconds))

    forecast = Forecast(sizes, 15.0, clock)
    for size, (profile_s, search_s, compare_s) in zip(sizes, phases, strict=True):
        progress = BatchSizeProgress(tell, f"batch size {size}", forecast)
        progress.begun()
        for step in range(100):
            progress(Profiling(step, 100))
            clock.now += profile_s / 100
        for step in range(100):
            progress(Searching(step))
            clock.now += search_s / 100
        for step in range(100):
            progress(Comparing(max(0.0, step - 20) / 80))  # first each runs once, to be checked
            clock.now += compare_s / 100
        progress.finished()
    yield from told


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_after_the_first_third_the_time_left_is_right_within_a_factor_of_two(
    job: tuple[float, Sequence[tuple[float, float, float]], Sequence[int]],
) -> None:
    end = job[0] + sum(map(sum, job[1]))

    told = list(reports(*job))
    late = [report for report in told if report.at > end / 3 and report.eta_seconds != UNKNOWN]

    left = [(report.eta_seconds, end - report.at) for report in late]
    assert sum(report.eta_seconds == UNKNOWN for report in told) <= 1, "at the very first unit"
    wrong = [(eta, real) for eta, real in left if not real / 2 - 1 <= eta <= real * 2 + 1]
    assert len(late) > 50
    assert wrong == []


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_progress_moves_in_every_phase_and_ends_near_the_end(
    job: tuple[float, Sequence[tuple[float, float, float]], Sequence[int]],
) -> None:
    shown, highest = [], 0.0
    for report in reports(*job):
        highest = max(highest, report.progress)  # the runner never shows less than before
        shown.append(highest)

    assert shown[0] == pytest.approx(0.15)
    assert shown[-1] > 0.9
    quarters = [shown[len(shown) * part // 4] for part in range(4)]
    assert quarters == sorted(set(quarters))


def test_nothing_is_told_twice_in_a_moment() -> None:
    clock = SetClock()
    told: list[str] = []
    progress = BatchSizeProgress(
        lambda now: told.append(now.detail), "batch size 1", Forecast((1,), None, clock)
    )

    for number in range(1000):
        progress(Searching(number))
        clock.now += 0.001

    assert 30 < len(told) < 70
