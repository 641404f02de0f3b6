"""The one place that reads the rest of the server for the console's pages."""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from braid.core.measurement import size_text
from braid.server.console.pictures import Drawn
from braid.server.console.rates import Key, ModelRates, Rates
from braid.server.devices.pool import Devices
from braid.server.inference.replica import ModelReplica
from braid.server.jobs.node_list import NodeList
from braid.server.jobs.runner import JobRunner
from braid.server.models.policies import VersionPolicies
from braid.server.models.queries import ModelQueries, Placed
from braid.server.models.serving_models import ServingModels
from braid.server.observability.metrics import Metrics
from braid.server.observability.series.requests import Statistics
from braid.server.observability.snapshot import private_bytes
from braid.server.store.records import JobRecord, ModelVersion

LISTED_JOBS = 200


@dataclass(frozen=True, slots=True)
class ScheduleAddress:
    """The schedule that a page shows, as its URL says; "" are the usual version and device."""

    model: str
    version: str
    batch_size: int
    device: str
    block: int | None = None  # the part to draw; None: all
    shapes: str = ""  # of several; "": the main ones


@dataclass(slots=True)
class Facts:
    """Parts of the server that the pages show. Belongs to the event loop."""

    queries: ModelQueries
    policies: VersionPolicies
    runner: JobRunner
    models: ServingModels
    metrics: Metrics
    devices: Devices
    settings: Mapping[str, str]  # names and values that may be shown
    nodes: NodeList
    register: Callable[[], str]  # command that registers a model here
    rates: Rates = field(init=False)
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.rates = Rates(self.metrics.requests)

    async def activity(self) -> Mapping[Key, ModelRates]:
        """Return the rates of every model. On a thread: hundreds of models have many series."""
        async with self._looking:
            return await asyncio.to_thread(self.rates.look)

    async def jobs(self, model: str = "") -> list[JobRecord]:
        return await self.runner.list(model or None, LISTED_JOBS)

    def served(self, model: ModelVersion) -> ModelReplica | None:
        replicas = self.models.served_version(model.name, model.version)
        return None if replicas is None else replicas.any

    def placed(self, model: ModelVersion) -> list[Placed]:
        """Return the schedules that serve, without a look at the store."""
        replicas = self.models.served_version(model.name, model.version)
        return [
            Placed(queued.replica.device.name, schedule, queued.replica.contest_table(schedule))
            for queued in (() if replicas is None else replicas.all)
            for schedule in queued.replica.schedules
        ]

    async def memory_text(self) -> str:
        """Return the memory of this process and of the devices', without what they share.

        Beside the limit of all processes of the server, of which imports and tensors take part.
        """
        pids = [os.getpid(), *(pid for of in self.devices.all for pid in of.pids.values())]
        each = await asyncio.to_thread(lambda: [private_bytes(pid) or 0 for pid in pids])
        return f"{size_text(sum(each))} of {size_text(self.nodes.memory_budget_bytes)}"

    def waiting(self, model: ModelVersion) -> int:
        return self.metrics.find_model(model.name, model.version).waiting_requests

    def statistics(self, model: ModelVersion) -> Statistics:
        return self.metrics.find_model(model.name, model.version).statistics

    def other_shapes(self, model: ModelVersion, placed: Placed) -> str:
        """Return the shapes of a schedule, unless they are a version's main ones."""
        return "" if self.models.is_main(model, placed.schedule) else placed.schedule.key.shapes

    def counted(self, name: str, **labels: str) -> float:
        """Return the sum of the series with these labels; reads their own family only."""
        families = self.metrics.registry.restricted_registry([name]).collect()
        series = (each for family in families for each in family.samples if each.name == name)
        return sum(each.value for each in series if labels.items() <= each.labels.items())

    async def schedule(self, at: ScheduleAddress) -> tuple[ModelVersion, Placed]:
        """Return the model and the schedule at an address; NotFound: there is none."""
        model = await self.queries.find(at.model, at.version)
        return model, await self.queries.schedule(model, at.batch_size, at.device, at.shapes)

    async def drawn(self, model: ModelVersion, placed: Placed, block: int | None = None) -> Drawn:
        graph = await self.queries.graph(model, placed)
        return await asyncio.to_thread(Drawn.of, model.name, placed.schedule, graph, block)
