"""Triton's ``nv_inference_*`` metrics over what Braid counts, for dashboards and autoscalers.

Off unless BRAID_TRITON_METRICS is set. Derived at scrape time from
the statistics of each model version, so that requests do not pay for a second set of names.
Durations are microseconds and cumulative, as Triton has them; copies into and out of the device
count as ``compute_infer``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import Metric
from prometheus_client.registry import Collector

from braid.server.observability.metrics import Metrics
from braid.server.observability.series.requests import Statistics

Read = Callable[[Statistics], float]

SERIES: tuple[tuple[str, str, str, Read], ...] = (
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
    """Collector of the series of all models of ``metrics``."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Yield one family a name. Triton's counters have no ``_total``, so theirs are untyped."""
        models = [(series.labels, series.statistics) for series in self._metrics.models()]
        for name, kind, text, read in SERIES:
            family = Metric(name, text, "gauge" if kind == "gauge" else "unknown")
            for (model, version), sums in models:
                family.add_sample(name, {"model": model, "version": version}, read(sums))
            yield family
