"""Prometheus metrics, with labels that stay bounded whatever callers send.

Series with a ``model`` label exist for registered models only: ``add_model`` makes them and
``remove_model`` drops them. Requests for anything else are counted under the model ``_unknown``,
which is no valid name of a model.
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
from braid.server.observability.series.plans import ScheduleMetrics
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
        self.jobs = JobMetrics(self.registry)
        self.devices = DeviceMetrics(self.registry)
        self.build = BuildMetrics(self.registry)
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

    def knows(self, model: str, version: str) -> bool:
        return (model, version) in self.requests.models

    def models(self) -> list[ModelMetrics]:
        return [each for each in list(self.requests.models.values()) if each is not self.unknown]

    def add_device(self, device: str) -> None:
        self.jobs.add_device(device)
        self.devices.add_device(device)
