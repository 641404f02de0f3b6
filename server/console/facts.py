"""What the console knows: one place that reads the rest of the server for its pages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from core.schedule import Schedule
from server.catalogue import Catalogue
from server.console.rates import Activity, Key, Rates
from server.device import Device
from server.jobs.runner import JobRunner
from server.metrics import Metrics, PlanLabels
from server.pictures import Drawn
from server.registry import Registry
from server.served import ServedModel
from server.store.records import Job, ModelVersion

LISTED_JOBS = 200


@dataclass(slots=True)
class Facts:
    """Belongs to the event loop."""

    registry: Registry
    runner: JobRunner
    catalogue: Catalogue
    metrics: Metrics
    device: Device
    settings: Mapping[str, str]  # names and values that may be shown
    rates: Rates = field(init=False)
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.rates = Rates(self.metrics)

    async def activity(self) -> Mapping[Key, Activity]:
        """What every model does now. On a thread: hundreds of models have many series."""
        async with self._looking:
            return await asyncio.to_thread(self.rates.look)

    async def jobs(self, model: str = "") -> list[Job]:
        """The newest jobs, newest first."""
        return await self.runner.list(model or None, LISTED_JOBS)

    def served(self, model: ModelVersion) -> ServedModel | None:
        """The serving side of a version, if it answers."""
        return self.catalogue.served_version(model.name, model.version)

    def waiting(self, model: ModelVersion) -> int:
        """Requests in a version's queue."""
        return self.metrics.find_model(model.name, model.version).waiting_requests

    def speedups(self) -> dict[Key, dict[int, float]]:
        """Speed-up by batch size for all models, as the metrics have it: no look at the store."""
        found: dict[Key, dict[int, float]] = {}
        for family in self.metrics.speedup.collect():
            for sample in family.samples:
                key = sample.labels["model"], sample.labels["version"]
                found.setdefault(key, {})[int(sample.labels["batch_size"])] = sample.value
        return found

    def drift(self, model: ModelVersion, batch_size: int) -> float | None:
        """Live over profiled latency of a plan, if it ran lately."""
        labels = PlanLabels(model.name, str(model.version), self.device.name, str(batch_size))
        return self.metrics.registry.get_sample_value("braid_plan_drift_ratio", labels._asdict())

    async def drawn(
        self, model: ModelVersion, schedule: Schedule, block: int | None = None
    ) -> Drawn:
        """A schedule with its graph, ready to be drawn."""
        graph = await self.registry.graph(model, schedule.key.batch_size)
        return await asyncio.to_thread(Drawn.of, model.name, schedule, graph, block)
