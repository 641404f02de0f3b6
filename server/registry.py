"""What is registered, as people ask for it: by name and version, with schedules and their graphs.

AdminService, console ──> Registry ──> store, runner, catalogue, device
"""

from __future__ import annotations

import asyncio

from core.errors import ModelNotFound, ScheduleNotFound, VersionNotFound
from core.graph import OpGraph
from core.schedule import Schedule
from engine.importer.report import read_graph, read_report
from server.catalogue import Catalogue
from server.device import Device
from server.jobs.runner import JobRunner
from server.profiled import profiled_inputs
from server.serving import Serving
from server.store.records import ModelState, ModelVersion
from server.store.store import Store


class Registry:
    """Finds and deletes model versions. Belongs to the event loop."""

    def __init__(
        self,
        store: Store,
        runner: JobRunner,
        catalogue: Catalogue,
        device: Device,
        serving: Serving,
    ) -> None:
        self._serving = serving
        self._store = store
        self._runner = runner
        self._catalogue = catalogue
        self._device = device

    async def models(self) -> list[ModelVersion]:
        """All versions of all models, by name and version."""
        return await self._store.call(self._store.models)

    async def versions(self, name: str) -> list[ModelVersion]:
        """All versions of one model, oldest first.

        Raises:
            ModelNotFound: nothing is registered under the name.
        """
        models = await self._store.call(self._store.models, name)
        if not models:
            raise ModelNotFound(name)
        return models

    async def find(self, name: str, version: str) -> ModelVersion:
        """One version; "" is the newest.

        Raises:
            ModelNotFound, VersionNotFound: there is none.
        """
        models = await self.versions(name)
        if not version:
            return models[-1]
        for model in models:
            if str(model.version) == version:
                return model
        raise VersionNotFound(name, version, tuple(model.version for model in models))

    async def schedules(self, model: ModelVersion) -> list[Schedule]:
        """The schedules that a model version was registered for, on the present device."""
        found = await self._store.call(
            self._store.schedules_of, model.sha256, self._device.device_key
        )
        return [each for each in found if each.key.planner == model.options.planner.text]

    async def schedule(self, model: ModelVersion, batch_size: int, device: str = "") -> Schedule:
        """The schedule of one batch size; "" is the first device.

        Raises:
            ScheduleNotFound: there is no such device, or no schedule yet.
        """
        if device not in ("", self._device.name):
            raise ScheduleNotFound(f"there is no device {device!r}; devices: {self._device.name}")
        schedules = await self.schedules(model)
        for schedule in schedules:
            if schedule.key.batch_size == batch_size:
                return schedule
        made = sorted(schedule.key.batch_size for schedule in schedules)
        raise ScheduleNotFound(
            f"model {model.name!r} version {model.version} has no schedule for batch size "
            f"{batch_size} on {self._device.name}; batch sizes with one: "
            f"{', '.join(map(str, made)) or 'none yet'}"
        )

    async def graph(self, model: ModelVersion, batch_size: int) -> OpGraph:
        """The units that a schedule's indices refer to."""
        artefact = self._store.folder.artefact(model.sha256)
        template = await asyncio.to_thread(read_graph, artefact)
        report = await asyncio.to_thread(read_report, artefact)
        inputs = profiled_inputs(template.inputs, report, model.options.input_shapes, batch_size)
        await self._device.load(model.sha256, artefact)
        return await self._device.describe(model.sha256, inputs)

    async def delete(self, name: str, version: str) -> None:
        """Refuse new requests, finish accepted ones, then remove; completes once begun.

        Args:
            name: of the model.
            version: "" for all versions.

        Raises:
            ModelNotFound, VersionNotFound: there is none.
            PreconditionFailed: the version has a label.
        """
        doomed = [await self.find(name, version)] if version else await self.versions(name)
        if version:
            await self._serving.prepare_deletion(name, doomed[0].version)
        await asyncio.shield(self._delete(doomed))

    async def _delete(self, doomed: list[ModelVersion]) -> None:
        draining = ModelState.DRAINING
        try:
            for model in doomed:
                name, version = model.name, model.version
                await self._store.call(self._store.set_model_state, name, version, draining)
                await self._runner.cancel_model(name, version)
                await self._catalogue.remove(name, version)
                await self._store.call(self._store.delete_model, name, version)
        finally:
            await self._serving.forget(doomed[0].name, [model.version for model in doomed])
