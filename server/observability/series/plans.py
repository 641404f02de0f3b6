"""Series of plans: speed of each schedule, made at each scrape."""

from collections.abc import Callable, Container, Iterable

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from braid.core.schedule import Schedule
from braid.server.observability.series.requests import REPLICA, family
from braid.server.store.records import ModelVersion

PLAN = (*REPLICA, "batch_size")

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


class ScheduleMetrics(Collector):
    """Series of schedules, for models that have series."""

    def __init__(self, registry: CollectorRegistry, models: Container[tuple[str, str]]) -> None:
        """``models``: names and versions of those that have series."""
        self._models = models
        self._schedules: dict[tuple[str, ...], Schedule] = {}  # by the labels ``PLAN``
        registry.register(self)

    def schedule_chosen(self, model: ModelVersion, device: str, schedule: Schedule) -> None:
        """Set the series of a schedule. Ignored for models that are gone."""
        labels = model.name, str(model.version)
        if labels in self._models:
            self._schedules[*labels, device, str(schedule.key.batch_size)] = schedule

    def remove_model(self, model: str, version: str) -> None:
        for plan in [labels for labels in self._schedules if labels[:2] == (model, version)]:
            del self._schedules[plan]

    def collect(self) -> Iterable[Metric]:
        schedules = list(self._schedules.items())
        for name, text, read in GAUGES:
            yield family(name, text, PLAN, [(plan, read(each)) for plan, each in schedules])
        yield family(
            "braid_schedule_precision",
            "1 for the precision that a schedule computes in",
            (*PLAN, "precision"),
            [((*plan, each.precision), 1) for plan, each in schedules],
        )
        yield family(
            "braid_schedule_candidate_latency_seconds",
            "Whole model under each plan that was tried, same run",
            (*PLAN, "planner"),
            [
                ((*plan, planner), latency_us * 1e-6)
                for plan, each in schedules
                for planner, latency_us in _candidates_of(each).items()
            ],
        )


def _seconds(us: float | None) -> float | None:
    return us and us * 1e-6


def _candidates_of(schedule: Schedule) -> dict[str, float]:
    """Return the whole-model latency in microseconds of each measured plan, by its planner."""
    return {
        contender.full_name: contender.latency_us
        for contender in schedule.provenance.candidates
        if contender.latency_us is not None
    }
