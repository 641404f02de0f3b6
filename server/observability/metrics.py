"""Prometheus metrics, with labels that stay bounded whatever callers send.

Series with a ``model`` label exist for registered models only: ``add_model`` makes them and
``remove_model`` drops them. Requests for anything else are counted under the model ``_unknown``,
which is no valid name of a model.
"""

import platform
import subprocess
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Gauge,
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
from braid_client.version import __version__

UNKNOWN_MODEL = "_unknown"
CHECKOUT = Path(__file__).resolve().parents[2]
GIT_SECONDS = 5.0


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
    ("nv_inference_request_success", "unknown", "Requests that succeeded",
     lambda s: s.success.count),
    ("nv_inference_request_failure", "unknown", "Requests that failed",
     lambda s: s.fail.count),
    ("nv_inference_count", "unknown", "Inferences: rows of all batches",
     lambda s: s.rows),
    ("nv_inference_exec_count", "unknown", "Batches that ran",
     lambda s: s.batches),
    ("nv_inference_request_duration_us", "unknown", "Time of requests that succeeded",
     lambda s: s.success.ns / 1e3),
    ("nv_inference_queue_duration_us", "unknown", "Time that requests waited",
     lambda s: s.queue.ns / 1e3),
    ("nv_inference_compute_input_duration_us", "unknown", "Counted in compute_infer",
     lambda s: 0.0),
    ("nv_inference_compute_infer_duration_us", "unknown", "Time of requests on the device",
     lambda s: s.compute.ns / 1e3),
    ("nv_inference_compute_output_duration_us", "unknown", "Counted in compute_infer",
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
            family = Metric(name, text, kind)
            for (model, version), sums in models:
                family.add_sample(name, {"model": model, "version": version}, read(sums))
            yield family


def tell_build(registry: CollectorRegistry, commit: str = "") -> None:
    """Export ``braid_build_info``, with "" where a package is absent or the commit unknown.

    ``commit`` is what the operator or the image says; else the checkout's, if this is one.
    """
    facts = {
        "version": __version__,
        "commit": commit or checkout_commit(CHECKOUT),
        "python": platform.python_version(),
        "torch": _installed("torch"),
        "onnxruntime": _installed("onnxruntime") or _installed("onnxruntime-gpu"),
    }
    info = Gauge("braid_build_info", "What runs; always 1", facts.keys(), registry=registry)
    info.labels(**facts).set(1)


def checkout_commit(folder: Path) -> str:
    """Return the commit of a git checkout; "" if the folder is none or git cannot tell."""
    if not (folder / ".git").exists():
        return ""
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
