"""Registered models, by name and version, with schedules and their graphs."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from braid.compiler.imported_model import read_imported
from braid.core.errors import DiskFailure, InvalidRequest, NotFound, ScheduleNotFound
from braid.core.graph import OpGraph
from braid.core.program import as_scheduled
from braid.core.schedule import ContestTable, Schedule
from braid.server.devices.device import Device
from braid.server.devices.pool import Devices
from braid.server.models.serving_models import ServingModels
from braid.server.models.versions import KnownVersion, number_of
from braid.server.store.records import ModelVersion
from braid.server.store.serving_config import ServingConfig
from braid.server.store.shared_files import ARTEFACT, Files
from braid.server.store.store import Store


@dataclass(frozen=True, slots=True)
class Placed:
    """A schedule, the name of its device, and how its candidates fare in service."""

    device: str
    schedule: Schedule
    live: ContestTable | None = None  # None: it does not serve

    @property
    def contest(self) -> ContestTable:
        return self.live or self.schedule.table


class ModelQueries:
    """Finds model versions and their schedules. Belongs to the event loop."""

    def __init__(self, store: Store, files: Files, models: ServingModels, devices: Devices) -> None:
        self._store = store
        self._files = files
        self._models = models
        self._devices = devices

    async def models(self) -> list[ModelVersion]:
        return self._as_seen(await self._store.call(self._store.models))

    async def versions(self, name: str) -> list[ModelVersion]:
        return self._as_seen(await self._store.call(self._store.versions, name))

    async def find(self, name: str, version: str) -> ModelVersion:
        """Version of a number or a label; "" is the one that requests get. Raises NotFound."""
        number = await self._number(name, version)
        row = await self._store.call(self._store.find_model, name, number)
        return self._models.as_seen(row)

    async def _number(self, name: str, version: str) -> int:
        """Version of a number or a label, also of what another server has just registered."""
        try:
            return self._models.number(name, version)
        except NotFound:
            stored = await self._store.call(self._store.models, name)
            configs = await self._store.call(self._store.serving_configs) if stored else {}
            labels = configs.get(name, ServingConfig()).labels
            known = {row.version: KnownVersion(row) for row in stored}
            number = number_of(known, version, labels) if known else None
            if number is None:
                raise
            return number

    def _as_seen(self, models: list[ModelVersion]) -> list[ModelVersion]:
        return list(map(self._models.as_seen, models))

    async def schedules(self, model: ModelVersion) -> list[Placed]:
        """Schedules that a version was registered for, on the present devices in turn."""
        return [
            self._placed(device, model, schedule)
            for device in self._devices.all
            for schedule in await self._schedules_on(device, model)
        ]

    def _placed(self, device: Device, model: ModelVersion, schedule: Schedule) -> Placed:
        replicas = self._models.served_version(model.name, model.version)
        replica = None if replicas is None else replicas.on(device.name)
        live = None if replica is None else replica.contest_table(schedule)
        return Placed(device.name, schedule, live)

    async def check_plan(self, name: str, plan: str) -> None:
        """Raise InvalidRequest, naming the plans there are, unless a schedule has the plan."""
        names = {
            candidate.name
            for model in await self.versions(name)
            for placed in await self.schedules(model)
            if placed.schedule.provenance.promoted
            for candidate in placed.schedule.candidates
        }
        if plan not in names:
            known = ", ".join(sorted(names)) or "none yet"
            raise InvalidRequest(f"{name} has no plan {plan[:100]!r}; plans: {known}")

    async def _schedules_on(self, device: Device, model: ModelVersion) -> list[Schedule]:
        """Schedules of the shapes that a version is scheduled for, those of the main one first.

        Of any shape, while the version does not serve.
        """
        store, key = self._store, device.device_key
        stored = await store.call(store.schedules_for, model.sha256, model.options, key)
        if shapes := self._models.scheduled_shapes(model):
            stored = [schedule for schedule in stored if schedule.key.shapes in shapes]
            stored.sort(key=lambda schedule: shapes.index(schedule.key.shapes))
        return stored

    async def schedule(
        self,
        model: ModelVersion,
        batch_size: int,
        device: str = "",
        shapes: str = "",
    ) -> Placed:
        """Schedule of one batch size, or ScheduleNotFound; "": the first device, the main shape."""
        on = self._named(device)
        schedules = await self._schedules_on(on, model)
        texts = list(dict.fromkeys(schedule.key.shapes for schedule in schedules))
        if shapes and shapes not in texts:
            raise ScheduleNotFound(
                f"model {model.name!r} version {model.version} has no schedule for {shapes} on "
                f"{on.name}; shapes with one: {'; '.join(texts) or 'none yet'}"
            )
        schedules = [one for one in schedules if one.key.shapes == (shapes or texts[0])]
        for schedule in schedules:
            if schedule.key.batch_size == batch_size:
                return self._placed(on, model, schedule)
        sizes = sorted(schedule.key.batch_size for schedule in schedules)
        raise ScheduleNotFound(
            f"model {model.name!r} version {model.version} has no schedule for batch size "
            f"{batch_size} on {on.name}; batch sizes with one: "
            f"{', '.join(map(str, sizes)) or 'none yet'}"
        )

    def _named(self, device: str) -> Device:
        on = self._devices.named(device)
        if on is None:
            names = ", ".join(item.name for item in self._devices.all)
            raise ScheduleNotFound(f"there is no device {device!r}; devices: {names}")
        return on

    async def graph(self, model: ModelVersion, placed: Placed) -> OpGraph:
        """Static graph of a schedule; where an earlier version stored none, the device makes it."""
        stored = await self._store.call(self._store.find_graph, placed.schedule)
        if stored is not None:
            return stored
        graph = await self._ask_device(model, placed)
        with suppress(DiskFailure):  # logged
            await self._store.call(self._store.put_graph, placed.schedule, graph)
        return graph

    async def _ask_device(self, model: ModelVersion, placed: Placed) -> OpGraph:
        artefact = self._store.folder.artefact(model.artefact)
        on = self._named(placed.device)
        async with on.keeping(model.artefact):
            with self._files.in_use(model.artefact):
                await self._files.fetch(ARTEFACT, model.artefact)
                imported = await asyncio.to_thread(
                    read_imported, model.artefact, model.options, artefact
                )
            await on.load(model.artefact, artefact)
            schedule = placed.schedule
            usual = imported.at(schedule.key.shapes).program(schedule.key.batch_size)
            return await on.describe(as_scheduled(usual, schedule))
