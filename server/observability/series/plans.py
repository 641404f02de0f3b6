"""Series of plans: speed of each schedule."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Gauge

from braid.core.schedule import Schedule
from braid.server.observability.series.requests import REPLICA
from braid.server.store.records import ModelVersion

PLAN = (*REPLICA, "batch_size")

Knows = Callable[[str, str], bool]
"""Returns whether a model's version, both as labels, has series."""


Read = Callable[[Schedule], float | None]
"""Reads the value of a gauge; None: not known."""

GAUGES: tuple[tuple[str, str, Read], ...] = (
    ("braid_schedule_latency_seconds", "Whole model under its schedule, as verified",
     lambda s: _seconds(s.provenance.measured_us)),
    ("braid_schedule_sequential_latency_seconds",
     "Whole model under the sequential plan, same run",
     lambda s: _seconds(s.provenance.sequential_us)),
    ("braid_schedule_speedup_ratio",
     "How many times as fast as sequential: median of the turns in which both ran",
     lambda s: s.speed.median if s.speed else None),
    ("braid_schedule_speedup_least_ratio",
     "Lower end of the interval (90 %) of braid_schedule_speedup_ratio",
     lambda s: s.speed.least if s.speed else None),
    ("braid_schedule_speedup_most_ratio",
     "Upper end of the interval (90 %) of braid_schedule_speedup_ratio",
     lambda s: s.speed.most if s.speed else None),
    ("braid_schedule_best_other_ratio",
     "How many times as fast what serves is as the best of the other runtimes, same run",
     lambda s: s.best_other.ratio if s.best_other else None),
    ("braid_schedule_latency_spread_ratio",
     "Of the runs behind braid_schedule_latency_seconds: middle half over median",
     lambda s: s.provenance.spread),
    ("braid_schedule_sequential_latency_spread_ratio",
     "The same of braid_schedule_sequential_latency_seconds",
     lambda s: s.sequential_spread),
    ("braid_schedule_promoted", "1 if the schedule serves, 0 if the sequential plan does",
     lambda s: s.provenance.promoted),
    ("braid_schedule_stages", "Stages of the schedule; 0 for plans of streams",
     lambda s: len(s.stages)),
    ("braid_schedule_error_ratio",
     "Largest difference of its outputs from FP32's, relative to the largest element of each",
     lambda s: s.provenance.max_rel_error),
    ("braid_schedule_top_agreement_ratio",
     "Part of the samples of a registration whose top class is FP32's",
     lambda s: s.provenance.top_agreement),
)  # fmt: skip
"""Gauges of a schedule: name, help text and value."""


class PlanLabels(NamedTuple):
    """Labels of one plan's series; in the order of ``PLAN``."""

    model: str
    version: str
    device: str
    batch_size: str

    @staticmethod
    def of(model: ModelVersion, device: str, schedule: Schedule) -> PlanLabels:
        return PlanLabels(model.name, str(model.version), device, str(schedule.key.batch_size))


class ScheduleMetrics:
    """Series of schedules, for models that have series."""

    def __init__(self, registry: CollectorRegistry, knows: Knows) -> None:
        self._knows = knows
        self._candidates: dict[PlanLabels, Collection[str]] = {}  # that have series
        self._gauges = [
            (Gauge(name, text, PLAN, registry=registry), read) for name, text, read in GAUGES
        ]
        self.precision = Gauge(
            "braid_schedule_precision",
            "1 for the precision that a schedule computes in",
            (*PLAN, "precision"),
            registry=registry,
        )
        self.candidate_seconds = Gauge(
            "braid_schedule_candidate_latency_seconds",
            "Whole model under each plan that was tried, same run",
            (*PLAN, "planner"),
            registry=registry,
        )

    def schedule_chosen(self, model: ModelVersion, device: str, schedule: Schedule) -> None:
        """Set the series of a schedule. Ignored for models that are gone."""
        if not self._knows(model.name, str(model.version)):
            return
        plan = PlanLabels.of(model, device, schedule)
        for gauge, read in self._gauges:
            if (value := read(schedule)) is not None:
                gauge.labels(*plan).set(value)
            else:
                gauge.remove(*plan)  # an earlier schedule's would contradict
        self.precision.remove_by_labels(plan._asdict())
        self.precision.labels(*plan, schedule.precision).set(1)
        candidates = _candidates_of(schedule)
        for planner in self._candidates.get(plan, ()):
            self.candidate_seconds.remove(*plan, planner)
        for planner, latency_us in candidates.items():
            self.candidate_seconds.labels(*plan, planner).set(latency_us * 1e-6)
        self._candidates[plan] = candidates.keys()

    def remove_model(self, model: str, version: str) -> None:
        for family in (
            *(gauge for gauge, _ in self._gauges),
            self.precision,
            self.candidate_seconds,
        ):
            family.remove_by_labels({"model": model, "version": version})
        for plan in [labels for labels in self._candidates if labels[:2] == (model, version)]:
            del self._candidates[plan]


def _seconds(us: float | None) -> float | None:
    return us and us * 1e-6


def _candidates_of(schedule: Schedule) -> dict[str, float]:
    """Return the whole-model latency in microseconds of each measured plan, by its planner."""
    return {
        contender.full_name: contender.latency_us
        for contender in schedule.provenance.candidates
        if contender.latency_us is not None
    }
