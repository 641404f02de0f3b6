"""Prometheus metrics, with labels that stay bounded whatever callers send.

Series with a ``model`` label exist for registered models only: ``add_model`` makes them and
``remove_model`` drops them. Requests for anything else are counted under the model ``_unknown``,
which is no valid name of a model.

    app      ──owns──> Metrics ──add_model──> ModelMetrics ──used by──> batcher, servicers
    jobs     ──tell──> Metrics.jobs
    ports    ──look, read──> Metrics.snapshot, then ──read──> Metrics.registry
"""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)

from braid.server.observability.build import BuildMetrics
from braid.server.observability.series.devices import DeviceMetrics
from braid.server.observability.series.jobs import JobMetrics
from braid.server.observability.series.plans import DriftMetrics, ScheduleMetrics
from braid.server.observability.series.requests import CallMetrics, ModelMetrics, RequestMetrics
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
        self.calls = CallMetrics(self.registry)
        self.schedules = ScheduleMetrics(self.registry, self.knows)
        self.drift = DriftMetrics(self.registry, self.knows)
        self.jobs = JobMetrics(self.registry)
        self.devices = DeviceMetrics(self.registry)
        self.build = BuildMetrics(self.registry)
        self.snapshot = SnapshotGauges()
        self.registry.register(self.snapshot)
        self._models: dict[tuple[str, str], ModelMetrics] = {}
        self.unknown = ModelMetrics(self.requests, UNKNOWN_MODEL, "")
        """Counts the requests that name no registered model."""

    def add_model(self, model: str, version: int) -> ModelMetrics:
        """Return the series of a registered model version; made by the first call."""
        key = (model, str(version))
        if key not in self._models:
            self._models[key] = ModelMetrics(self.requests, *key)
        return self._models[key]

    def find_model(self, model: str, version: int | str) -> ModelMetrics:
        return self._models.get((model, str(version)), self.unknown)

    def remove_model(self, model: str, version: int) -> None:
        key = (model, str(version))
        if (series := self._models.pop(key, None)) is not None:
            series.retire()
        self.requests.remove_model(*key)
        self.schedules.remove_model(*key)
        self.drift.remove_model(*key)

    def knows(self, model: str, version: str) -> bool:
        return (model, version) in self._models

    def models(self) -> dict[tuple[str, str], ModelMetrics]:
        return dict(self._models)

    def add_device(self, device: str) -> None:
        self.jobs.add_device(device)
        self.drift.add_device(device)
        self.devices.add_device(device)
