"""Prometheus metrics, with labels that stay bounded whatever callers send.

Series with a ``model`` label exist for registered models only: they are made by ``add_model`` and
go with ``remove_model``. Requests for anything else are counted under the model ``_unknown``,
which no model can be named.

    server.frontend ──owns──> Metrics ──add_model──> ModelMetrics ──used by──> batcher, servicers
    braid.server.jobs     ──tells──> Metrics  (it is a braid.server.jobs.interfaces.JobObserver)
    braid.server.ports.http_port     ──reads──> Metrics.registry
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

from braid.core.measurement import Speed
from braid.core.schedule import Schedule
from braid.engine.link.options import EndReason
from braid.server.inference.call_memory import CallMemory
from braid.server.observability.statistics import Statistics
from braid.server.store.records import ModelVersion

UNKNOWN_MODEL = "_unknown"

SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    10.0,
)  # fmt: skip
"""Bucket bounds from one kernel to a lost patience."""
ROWS = tuple(float(2**power) for power in range(11))

MODEL = ("model", "version")
REPLICA = (*MODEL, "device")
PLAN = (*REPLICA, "batch_size")


class PlanLabels(NamedTuple):
    """What names a plan in the metrics; in the order of ``PLAN``."""

    model: str
    version: str
    device: str
    batch_size: str


OnSchedule = Callable[[PlanLabels, Schedule], None]
"""Told each schedule that is found or made for a model."""


def candidates_of(schedule: Schedule) -> dict[str, float]:
    """Whole-model latency in microseconds of each plan that was measured, by what made it."""
    return {
        contender.name: contender.latency_us
        for contender in schedule.provenance.candidates
        if contender.latency_us is not None
    }


class ReplicaMetrics:
    """The series of one model version on one device; what its queue and its batches report to."""

    def __init__(self, metrics: Metrics, labels: tuple[str, str, str], sums: Statistics) -> None:
        self.waiting_requests = 0
        self._sums = sums
        self._queue = metrics.queue_seconds.labels(*labels)
        self._compute = metrics.compute_seconds.labels(*labels)
        self._rows = metrics.batch_rows.labels(*labels)
        self._size = metrics.batch_size.labels(*labels)
        self._waiting_requests = metrics.queue_requests.labels(*labels)
        self._waiting_rows = metrics.queue_rows.labels(*labels)

    def request_computed(self, queue_seconds: float, compute_seconds: float) -> None:
        """Record how long a request waited and how long the device worked for it."""
        self._queue.observe(queue_seconds)
        self._compute.observe(compute_seconds)
        self._sums.request_computed(queue_seconds, compute_seconds)

    def batch_ran(self, batch_size: int, rows: int, compute_us: int) -> None:
        """Record one batch: the size of its plan, and the rows in it that were asked for."""
        self._sums.batch_ran(batch_size, rows, compute_us)
        self._size.observe(batch_size)
        self._rows.observe(rows)

    def queue_is(self, requests: int, rows: int) -> None:
        """Set what is waiting now."""
        self.waiting_requests = requests
        self._waiting_requests.set(requests)
        self._waiting_rows.set(rows)


class ModelMetrics:
    """The series of one model version, looked up once so that requests do not pay for it.

    After ``Metrics.remove_model`` it still takes what late requests report, and nobody sees it.
    """

    def __init__(self, metrics: Metrics, model: str, version: str) -> None:
        self.statistics = Statistics()
        self.candidates: dict[PlanLabels, Collection[str]] = {}  # that have series, by plan
        self.speeds: dict[PlanLabels, Speed] = {}  # of schedules beside sequential, if known
        self._metrics = metrics
        self._replicas: dict[str, ReplicaMetrics] = {}
        self._requests: dict[str, Counter] = {}
        self._count = metrics.requests
        self._labels = (model, version)
        self._total = metrics.duration_seconds.labels(*self._labels)

    @property
    def waiting_requests(self) -> int:
        """In the queues of all devices."""
        return sum(replica.waiting_requests for replica in self._replicas.values())

    def on(self, device: str) -> ReplicaMetrics:
        """The series of one device."""
        replica = self._replicas.get(device)
        if replica is None:
            replica = ReplicaMetrics(self._metrics, (*self._labels, device), self.statistics)
            self._replicas[device] = replica
        return replica

    def request_ended(self, outcome: str, total_seconds: float) -> None:
        """Count one request that ended; ``outcome`` is the name of its gRPC status."""
        counter = self._requests.get(outcome)
        if counter is None:
            counter = self._requests[outcome] = self._count.labels(*self._labels, outcome)
        counter.inc()
        self._total.observe(total_seconds)
        self.statistics.request_ended(outcome == "OK", total_seconds)


class Metrics:
    """All metrics of one server, on a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        at: dict[str, Any] = {"registry": self.registry}
        slow: dict[str, Any] = {"registry": self.registry, "buckets": SECONDS}
        rows: dict[str, Any] = {"registry": self.registry, "buckets": ROWS}

        self.requests = Counter(
            "braid_requests", "Requests that ended, by gRPC status", (*MODEL, "outcome"), **at
        )
        self.duration_seconds = Histogram(
            "braid_request_duration_seconds", "From accepted to answered", MODEL, **slow
        )
        self.queue_seconds = Histogram(
            "braid_request_queue_seconds", "From accepted to sent to the device", REPLICA, **slow
        )
        self.compute_seconds = Histogram(
            "braid_request_compute_seconds", "On the device, copies included", REPLICA, **slow
        )
        self.batch_rows = Histogram(
            "braid_batch_rows", "Rows of a batch that belonged to requests", REPLICA, **rows
        )
        self.batch_size = Histogram(
            "braid_batch_size_rows", "Rows of a batch, padding included", REPLICA, **rows
        )
        self.queue_requests = Gauge(
            "braid_queue_depth_requests", "Requests waiting for the device now", REPLICA, **at
        )
        self.queue_rows = Gauge(
            "braid_queue_depth_rows", "Rows waiting for the device now", REPLICA, **at
        )
        self.queue_limit = Gauge(
            "braid_queue_limit_requests", "Requests that may wait for one model", **at
        )

        self.held_bytes = Gauge(
            "braid_calls_memory_bytes", "Requests under way and answers not read yet", **at
        )
        self.unread_bytes = Gauge(
            "braid_unread_answer_bytes", "Answers computed that callers have not read yet", **at
        )

        self.jobs = Gauge("braid_jobs", "Registration jobs by state", ("state",), **at)
        self.measurements = Counter(
            "braid_stage_measurements", "Stages measured on a device", ("device",), **at
        )
        self.measurement_seconds = Counter(
            "braid_stage_measurement_seconds", "Time spent measuring stages", ("device",), **at
        )
        self.measurements_reused = Counter(
            "braid_stage_measurements_reused",
            "Stage latencies found in the store",
            ("device",),
            **at,
        )
        self.refused = Counter(
            "braid_plans_refused", "Plans refused for wrong outputs", ("device",), **at
        )
        self.cache = Counter(
            "braid_schedule_cache_lookups", "Schedule cache look-ups", ("result",), **at
        )
        for result in ("hit", "miss"):
            self.cache.labels(result)  # a rate needs the zero

        self.latency_seconds = Gauge(
            "braid_schedule_latency_seconds",
            "Whole model under its schedule, as verified",
            PLAN,
            **at,
        )
        self.sequential_seconds = Gauge(
            "braid_schedule_sequential_latency_seconds",
            "Whole model under the sequential plan, same run",
            PLAN,
            **at,
        )
        self.speedup = Gauge(
            "braid_schedule_speedup_ratio",
            "How many times as fast as sequential: median of the turns in which both ran",
            PLAN,
            **at,
        )
        self.speedup_least = Gauge(
            "braid_schedule_speedup_least_ratio",
            "Lower end of the interval (90 %) of braid_schedule_speedup_ratio",
            PLAN,
            **at,
        )
        self.speedup_most = Gauge(
            "braid_schedule_speedup_most_ratio",
            "Upper end of the interval (90 %) of braid_schedule_speedup_ratio",
            PLAN,
            **at,
        )
        self.spread = Gauge(
            "braid_schedule_latency_spread_ratio",
            "Of the runs behind braid_schedule_latency_seconds: middle half over median",
            PLAN,
            **at,
        )
        self.sequential_spread = Gauge(
            "braid_schedule_sequential_latency_spread_ratio",
            "The same of braid_schedule_sequential_latency_seconds",
            PLAN,
            **at,
        )
        self.promoted = Gauge(
            "braid_schedule_promoted",
            "1 if the schedule serves, 0 if the sequential plan does",
            PLAN,
            **at,
        )
        self.stages = Gauge(
            "braid_schedule_stages", "Stages of the schedule; 0 for plans of streams", PLAN, **at
        )
        self.candidate_seconds = Gauge(
            "braid_schedule_candidate_latency_seconds",
            "Whole model under each plan that was tried, same run",
            (*PLAN, "planner"),
            **at,
        )
        self.live_seconds = Gauge(
            "braid_plan_live_latency_seconds",
            "Median of the latest batches under the plan that serves",
            PLAN,
            **at,
        )
        self.drift_ratio = Gauge(
            "braid_plan_drift_ratio", "Live over profiled latency; 1 is as profiled", PLAN, **at
        )
        self.drifting = Gauge(
            "braid_plan_drifting",
            "1 while the plan has been slower than profiled for BRAID_DRIFT_SECONDS",
            PLAN,
            **at,
        )
        self.reprofiles = Counter(
            "braid_reprofiles", "Models profiled again because of drift", ("device",), **at
        )
        self.worker_restarts = Counter(
            "braid_worker_restarts",
            "Device workers that died and were restarted, by why they died",
            ("device", "reason"),
            **at,
        )
        self.on_schedule: OnSchedule = lambda plan, schedule: None
        self._models: dict[tuple[str, str], ModelMetrics] = {}
        self.unknown = ModelMetrics(self, UNKNOWN_MODEL, "")
        """Takes the requests that name no registered model."""

    # Models: the only way to a series with a model's name.

    def add_model(self, model: str, version: int) -> ModelMetrics:
        """Series of a registered model version; the same object when asked again."""
        key = (model, str(version))
        if key not in self._models:
            self._models[key] = ModelMetrics(self, *key)
        return self._models[key]

    def find_model(self, model: str, version: int | str) -> ModelMetrics:
        """Series of a model version if it was added, else those of unknown models."""
        return self._models.get((model, str(version)), self.unknown)

    def remove_model(self, model: str, version: int) -> None:
        """Drop every series of a deleted model version."""
        key = (model, str(version))
        self._models.pop(key, None)
        labels = {"model": key[0], "version": key[1]}
        for metric in (
            self.requests, self.duration_seconds, self.queue_seconds, self.compute_seconds,
            self.batch_rows, self.batch_size, self.queue_requests, self.queue_rows,
            self.latency_seconds, self.sequential_seconds, self.speedup, self.speedup_least,
            self.speedup_most, self.spread, self.sequential_spread, self.promoted, self.stages,
            self.candidate_seconds, self.live_seconds, self.drift_ratio,
            self.drifting,
        ):  # fmt: skip
            metric.remove_by_labels(labels)

    def knows(self, model: str, version: str) -> bool:
        """Whether a model version has series of its own."""
        return (model, version) in self._models

    def models(self) -> dict[tuple[str, str], ModelMetrics]:
        """All model versions that have series, by name and version."""
        return dict(self._models)

    def watch_calls(self, memory: CallMemory) -> None:
        """Export what calls hold, in bytes at the time of each scrape."""
        self.held_bytes.set_function(lambda: memory.held_bytes)
        self.unread_bytes.set_function(lambda: memory.unread_bytes)

    # Devices.

    def add_device(self, device: str) -> None:
        """Make the series of a device, so that they begin at zero."""
        for counter in (
            self.measurements, self.measurement_seconds, self.measurements_reused,
            self.reprofiles, self.refused,
        ):  # fmt: skip
            counter.labels(device)
        for reason in EndReason:
            self.worker_restarts.labels(device, reason.value)

    def worker_restarted(self, device: str, reason: EndReason) -> None:
        """Count a device worker that died and was started again."""
        self.worker_restarts.labels(device, reason.value).inc()

    def restarts(self, device: str) -> float:
        """How often a device's worker died, whatever the reason."""
        samples = (
            self.registry.get_sample_value(
                "braid_worker_restarts_total", {"device": device, "reason": reason.value}
            )
            for reason in EndReason
        )
        return sum(filter(None, samples))

    # Jobs: braid.server.jobs.interfaces.JobObserver.

    def jobs_counted(self, by_state: Mapping[str, int]) -> None:
        """Set the number of jobs in each state."""
        for state, count in by_state.items():
            self.jobs.labels(state).set(count)

    def stage_measured(self, device: str, seconds: float) -> None:
        """Count one stage measurement and the time it took."""
        self.measurements.labels(device).inc()
        self.measurement_seconds.labels(device).inc(seconds)

    def stages_reused(self, device: str, count: int) -> None:
        """Count stage latencies that were found in the store."""
        self.measurements_reused.labels(device).inc(count)

    def plans_refused(self, device: str, count: int) -> None:
        """Count plans whose outputs were wrong."""
        self.refused.labels(device).inc(count)

    def schedule_looked_up(self, hit: bool) -> None:
        """Count one look-up in the schedule cache."""
        self.cache.labels("hit" if hit else "miss").inc()

    def schedule_chosen(self, model: ModelVersion, device: str, schedule: Schedule) -> None:
        """Show what a schedule brings. Ignored for models that are gone."""
        of_model = self._models.get((model.name, str(model.version)))
        if of_model is None:
            return
        labels = (model.name, str(model.version), device, str(schedule.key.batch_size))
        seen, speed = schedule.provenance, schedule.speed
        values = {
            self.promoted: seen.promoted,
            self.stages: len(schedule.stages),
            self.latency_seconds: seen.measured_us and seen.measured_us * 1e-6,
            self.sequential_seconds: seen.sequential_us and seen.sequential_us * 1e-6,
            self.spread: seen.spread,
            self.sequential_spread: schedule.sequential_spread,
            self.speedup: speed.median if speed else None,
            self.speedup_least: speed.least if speed else None,
            self.speedup_most: speed.most if speed else None,
        }
        for gauge, value in values.items():
            if value is not None:
                gauge.labels(*labels).set(value)
            else:
                gauge.remove(*labels)  # an earlier schedule's would contradict
        plan, candidates = PlanLabels(*labels), candidates_of(schedule)
        of_model.speeds.pop(plan, None)
        if speed is not None:
            of_model.speeds[plan] = speed
        for planner in of_model.candidates.get(plan, ()):
            self.candidate_seconds.remove(*labels, planner)
        for planner, latency_us in candidates.items():
            self.candidate_seconds.labels(*labels, planner).set(latency_us * 1e-6)
        of_model.candidates[plan] = candidates.keys()
        self.on_schedule(plan, schedule)

    def speeds(self) -> dict[PlanLabels, Speed]:
        """Known speeds beside sequential, of all schedules of all models."""
        return {
            plan: speed for each in self._models.values() for plan, speed in each.speeds.items()
        }

    # Drift: braid.server.observability.drift.DriftGauges.

    def drift_is(self, plan: PlanLabels, live_us: float, ratio: float, drifting: bool) -> None:
        """Set how long a plan takes now, and that beside its profile."""
        if self.knows(plan.model, plan.version):
            self.live_seconds.labels(*plan).set(live_us * 1e-6)
            self.drift_ratio.labels(*plan).set(ratio)
            self.drifting.labels(*plan).set(drifting)

    def drift_unknown(self, plan: PlanLabels) -> None:
        """Drop what was said of a plan that has not run lately."""
        for gauge in (self.live_seconds, self.drift_ratio, self.drifting):
            gauge.remove_by_labels(plan._asdict())

    def profiled_again(self, device: str) -> None:
        """Count a model that is profiled again because its plan had drifted."""
        self.reprofiles.labels(device).inc()
