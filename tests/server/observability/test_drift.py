"""Schedule drift, with a clock of our own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from braid.core.plan import sequential_plan
from braid.core.schedule import Provenance, Schedule, ScheduleKey
from braid.server.observability.drift import PAUSE_SECONDS, SAMPLE_SECONDS, DriftWatch
from braid.server.observability.metrics import Metrics
from braid.server.observability.series.plans import PlanLabels

LABELS = PlanLabels("lenet", "1", "cpu", "1")
SCHEDULE = Schedule(
    ScheduleKey("ab" * 32, "cpu", 1),
    "ios",
    sequential_plan(1),
    (),
    ("a",),
    Provenance(measured_us=1000.0, sequential_us=2000.0),
)


class Watched:
    """A watch, its metrics, its time, and what it reported."""

    def __init__(self) -> None:
        self.now = 0.0
        self.metrics = Metrics()
        self.metrics.add_model("lenet", 1)
        self.reported: list[PlanLabels] = []
        self.ratios: list[float] = []
        self.watch = DriftWatch(
            self.metrics.drift, 1.5, 60.0, self._drifted, clock=lambda: self.now
        )
        self.watch.expect(LABELS, SCHEDULE)

    def _drifted(self, labels: PlanLabels, ratio: float) -> None:
        self.reported.append(labels)
        self.ratios.append(ratio)

    def run_for(self, seconds: float, compute_us: int) -> None:
        """A batch a second, a check every five."""
        for _ in range(int(seconds)):
            self.now += 1.0
            self.watch.ran(SCHEDULE.plan_id, compute_us)
            if self.now % 5 == 0:
                self.watch.check()

    def gauge(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, LABELS._asdict())


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_plan_as_fast_as_profiled_does_not_drift(watched: Watched) -> None:
    watched.run_for(300, 1100)

    assert watched.gauge("braid_plan_live_latency_seconds") == pytest.approx(0.0011)
    assert watched.gauge("braid_plan_drift_ratio") == pytest.approx(1.1)
    assert watched.gauge("braid_plan_drifting") == 0
    assert watched.reported == []


def test_a_plan_slower_for_long_enough_drifts_and_is_reported_once(watched: Watched) -> None:
    watched.run_for(60, 1000)
    watched.run_for(60, 3000)
    assert watched.gauge("braid_plan_drifting") == 0

    watched.run_for(300, 3000)

    assert watched.gauge("braid_plan_drift_ratio") == 3.0
    assert watched.gauge("braid_plan_drifting") == 1
    assert watched.reported == [LABELS]
    watched.run_for(PAUSE_SECONDS, 3000)
    assert watched.reported == [LABELS, LABELS]


def test_a_plan_faster_for_long_enough_was_profiled_on_a_busy_machine_and_is_reported(
    watched: Watched,
) -> None:
    watched.run_for(60, 1000)
    watched.run_for(60, 550)
    assert watched.reported == []

    watched.run_for(300, 550)

    assert watched.reported == [LABELS]
    assert watched.ratios == [0.55]
    assert watched.gauge("braid_plan_drift_ratio") == 0.55
    assert watched.gauge("braid_plan_drifting") == 0, "nothing is wrong with how it serves"


def test_being_faster_and_being_slower_are_not_one_drift(watched: Watched) -> None:
    watched.run_for(30, 3000)
    watched.run_for(50, 300)  # most batches are from the 30th second on
    assert watched.gauge("braid_plan_drift_ratio") == 0.3
    watched.run_for(40, 3000)  # and from the 20th
    assert watched.gauge("braid_plan_drift_ratio") == 3.0

    assert watched.reported == [], "100 seconds, and no 60 of one of them"


def test_a_tiny_plan_is_not_doubted_for_what_a_clock_cannot_tell(watched: Watched) -> None:
    tiny = replace(SCHEDULE, provenance=Provenance(measured_us=150.0))
    watched.watch.expect(LABELS, tiny)

    watched.run_for(300, 60)

    assert watched.reported == []


def test_a_busy_moment_is_no_drift(watched: Watched) -> None:
    watched.run_for(100, 1000)
    for _ in range(5):
        watched.run_for(50, 3000)
        watched.run_for(200, 1000)

    assert watched.reported == []


def test_a_plan_that_does_not_run_says_nothing(watched: Watched) -> None:
    watched.run_for(60, 3000)
    watched.now += SAMPLE_SECONDS + 1
    watched.watch.check()

    assert watched.gauge("braid_plan_drift_ratio") is None


def test_tiny_plans_are_not_judged_by_the_cost_of_copies(watched: Watched) -> None:
    tiny = replace(SCHEDULE, provenance=Provenance(measured_us=20.0))
    watched.watch.expect(LABELS, tiny)

    watched.run_for(300, 150)

    assert watched.gauge("braid_plan_drift_ratio") == 7.5
    assert watched.gauge("braid_plan_drifting") == 0


def test_a_new_profile_is_the_measure_from_then_on(watched: Watched) -> None:
    watched.run_for(300, 3000)
    again = replace(SCHEDULE, provenance=Provenance(measured_us=3000.0))

    watched.watch.expect(LABELS, again)
    watched.run_for(100, 3000)

    assert watched.gauge("braid_plan_drift_ratio") == 1.0
    assert watched.gauge("braid_plan_drifting") == 0


def test_plans_that_do_not_serve_and_models_that_are_gone_are_not_watched(watched: Watched) -> None:
    watched.run_for(60, 3000)
    watched.metrics.remove_model("lenet", 1)
    watched.run_for(300, 3000)
    assert watched.gauge("braid_plan_drift_ratio") is None
    assert watched.reported == []

    other = Watched()
    other.watch.expect(LABELS, replace(SCHEDULE, provenance=Provenance(1.0, 1.0, promoted=False)))
    other.run_for(300, 3000)
    assert other.gauge("braid_plan_drift_ratio") is None
