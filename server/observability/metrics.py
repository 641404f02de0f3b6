"""Prometheus metrics, with labels that stay bounded whatever callers send.

Series with a ``model`` label exist for registered models only: ``add_model`` makes them and
``remove_model`` drops them. Requests for anything else are counted under the model ``_unknown``,
which is no valid name of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Metric,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.registry import Collector

from braid.server.observability.series.jobs import JobMetrics
from braid.server.observability.series.plans import ScheduleMetrics
from braid.server.observability.series.requests import ModelMetrics, RequestMetrics, Statistics
from braid.server.observability.snapshot import SnapshotGauges

UNKNOWN_MODEL = "_unknown"


class Metrics:
    """Metrics of one server, on a registry of its own."""

    def __init__(self) -> None:
        # A second series for each counter; this is a switch of the whole process.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.requests = RequestMetrics(self.registry)
        self.schedules = ScheduleMetrics(self.registry, self.requests.models)
        self.jobs = JobMetrics(self.registry)
        self.snapshot = SnapshotGauges()
        self.registry.register(self.snapshot)
        self.unknown = ModelMetrics(UNKNOWN_MODEL, "")
        """Counts the requests that name no registered model."""
        self.requests.models[self.unknown.labels] = self.unknown

    def add_model(self, model: str, version: int) -> ModelMetrics:
        """Return the series of a registered model version; made by the first call."""
        key = (model, str(version))
        if key not in self.requests.models:
            self.requests.models[key] = ModelMetrics(*key)
        return self.requests.models[key]

    def find_model(self, model: str, version: int | str) -> ModelMetrics:
        return self.requests.models.get((model, str(version)), self.unknown)

    def remove_model(self, model: str, version: int) -> None:
        key = (model, str(version))
        self.requests.models.pop(key, None)
        self.schedules.remove_model(*key)

    def models(self) -> list[ModelMetrics]:
        return [each for each in list(self.requests.models.values()) if each is not self.unknown]


TRITON: tuple[tuple[str, str, str, Callable[[Statistics], float]], ...] = (
    ("nv_inference_request_success", "counter", "Requests that succeeded",
     lambda s: s.success.count),
    ("nv_inference_request_failure", "counter", "Requests that failed",
     lambda s: s.fail.count),
    ("nv_inference_count", "counter", "Inferences: rows of all batches",
     lambda s: s.rows),
    ("nv_inference_exec_count", "counter", "Batches that ran",
     lambda s: s.batches),
    ("nv_inference_request_duration_us", "counter", "Time of requests that succeeded",
     lambda s: s.success.ns / 1e3),
    ("nv_inference_queue_duration_us", "counter", "Time that requests waited",
     lambda s: s.queue.ns / 1e3),
    ("nv_inference_compute_input_duration_us", "counter", "Counted in compute_infer",
     lambda s: 0.0),
    ("nv_inference_compute_infer_duration_us", "counter", "Time of requests on the device",
     lambda s: s.compute.ns / 1e3),
    ("nv_inference_compute_output_duration_us", "counter", "Counted in compute_infer",
     lambda s: 0.0),
    ("nv_inference_pending_request_count", "gauge", "Requests that wait now",
     lambda s: s.waiting_requests),
)  # fmt: skip


class TritonMetrics(Collector):
    """Triton's ``nv_inference_*`` metrics over what Braid counts, for dashboards and autoscalers.

    Off unless BRAID_TRITON_METRICS is set. Durations are microseconds and cumulative, as Triton has
    them; copies into and out of the device count as ``compute_infer``.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Yield one family a name. Triton's counters have no ``_total``, so theirs are untyped."""
        models = [(series.labels, series.statistics) for series in self._metrics.models()]
        for name, kind, text, read in TRITON:
            family = Metric(name, text, "gauge" if kind == "gauge" else "unknown")
            for (model, version), sums in models:
                family.add_sample(name, {"model": model, "version": version}, read(sums))
            yield family
