"""Versions that are not in memory are loaded again: after a restart, or for a request.

After a restart the last used come first. Each takes its turn of the name, as loads, unloads and
deletions do.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from math import inf
from time import monotonic

from braid.core.background import log_failure
from braid.core.errors import (
    BraidError,
    DamagedArtefact,
    DeadlineExceeded,
    DiskFailure,
    InvalidArtefact,
    ModelLoading,
    WorkerFault,
)
from braid.server.devices.device import Device
from braid.server.jobs.registration import serve_again
from braid.server.jobs.services import JobServices
from braid.server.models.serving_models import ServingModels
from braid.server.models.versions import KnownVersion
from braid.server.store.records import ModelStatus, ModelVersion

log = logging.getLogger("braid.restore")

AT_ONCE = 4
"""Number of models whose files are read at the same time; the worker loads one at a time."""


class Restore:
    """Serves versions again that answered before. Belongs to the event loop."""

    def __init__(
        self,
        services: JobServices,
        models: ServingModels,
        *,
        is_shared: bool = False,
        wait_s: float = inf,
        most_waiting: int = 1024,
    ) -> None:
        """``is_shared``: what is damaged here is fetched again, and is no state of the model.

        A request waits for ``wait_s`` seconds, and at most so many do for one version.
        """
        self._wait_s, self._most_waiting = wait_s, most_waiting
        self._services = services
        self._models = models
        self._is_shared = is_shared
        self._catching_up: set[str] = set()  # names of devices that models are loaded on
        self._places = asyncio.Semaphore(AT_ONCE)

    async def know(self) -> None:
        """Register every stored model, before the first request can come."""
        store = self._services.store
        for model in await store.call(store.models):
            if model.state in (ModelStatus.SERVING, ModelStatus.DAMAGED):
                if model.state is ModelStatus.SERVING and not self._services.room.is_wanted(model):
                    self._models.away(model)
                    continue
                self._models.restoring(model)
            else:
                self._models.register(model)

    async def serve(self, are_wanted: Callable[[ModelVersion], bool] = lambda model: True) -> None:
        """Serve the models that served before; returns when each of them does, or cannot.

        One for which there is no room is loaded by the first request for it.
        """
        room = self._services.room
        wanted = list(filter(are_wanted, self._models.to_restore))
        wanted.sort(key=lambda model: (room.place_in_order(model), model.size_bytes))
        waiting = iter(wanted)
        async with asyncio.TaskGroup() as restored:
            for _ in range(AT_ONCE):
                restored.create_task(self._serve_each(waiting))

    async def _serve_each(self, waiting: Iterator[ModelVersion]) -> None:
        for model in waiting:
            if model.state is ModelStatus.SERVING and not self._services.room.has_room(model):
                if self._models.is_coming(model.name, model.version):
                    self._models.away(model)
                continue
            if (known := self._models.find(model.name, model.version)) is not None:
                await asyncio.wait({self.again(known)})

    def again(self, known: KnownVersion) -> asyncio.Task[BraidError | None]:
        """Load a version that answered before; the task returns why it cannot answer, or None.

        Several who ask for the same version get the same task.
        """
        if known.load is None or known.load.done():
            known.load = asyncio.create_task(self._in_turn(known.row))
            known.load.add_done_callback(log_failure)
        return known.load

    async def bring(self, known: KnownVersion, deadline: float | None) -> None:
        """Load a version for a request; the load goes on though nobody waits for it any more.

        Raises ModelLoading (longer than requests may wait), DeadlineExceeded or BraidError.
        """
        model = known.row
        label = f"model {model.name!r} version {model.version}"
        task = self.again(known)
        if self._models.config(model.name).residency.refuses:
            raise ModelLoading(f"{label} is being loaded, as it was not in memory; try again")
        if known.waiting >= self._most_waiting:
            raise ModelLoading(f"{label} is being loaded, and many requests wait; try again")
        left_s = inf if deadline is None else max(0.0, deadline - monotonic())
        known.waiting += 1
        try:
            await asyncio.wait({task}, timeout=min(left_s, self._wait_s))
        finally:
            known.waiting -= 1
        if task.done():
            if (problem := task.result()) is not None:
                raise problem
        elif left_s < self._wait_s:
            raise DeadlineExceeded(f"{label} was not loaded before the deadline")
        else:
            raise ModelLoading(f"{label} is still being loaded after {self._wait_s:g} s; try again")

    async def _in_turn(self, model: ModelVersion) -> BraidError | None:
        async with self._models.turns.of(model.name):
            return await self.now(model)

    async def now(self, model: ModelVersion) -> BraidError | None:
        """Load a version, unless it is loaded or gone by now; the caller has the turn."""
        if not self._models.is_coming(model.name, model.version):
            return None
        return await self.serve_stored(model)

    async def serve_stored(self, model: ModelVersion) -> BraidError | None:
        """Serve one model again; returns what prevents it. An error of it stops no other."""
        facts = {"model": model.name, "version": model.version}
        problem: BraidError | None = None
        try:
            async with self._places:
                await serve_again(model, self._services)
            if model.state is ModelStatus.DAMAGED:  # its files were put back
                await self._change(model, ModelStatus.SERVING)
        except (DamagedArtefact, InvalidArtefact) as error:
            await self._damaged(model, error)
            self._models.restored(model)
            return error
        except BraidError as error:
            problem = error
            log.error("model does not serve again", extra={**facts, "reason": str(error)})
        except Exception:
            problem = WorkerFault("internal error; the server's log has more")
            log.exception("model does not serve again", extra=facts)
        self._models.restored(model, problem)
        return problem

    async def serve_missing(self, device: Device) -> None:
        """Serve the models that should answer on a device and do not, since it was down.

        Does nothing while that goes on already, perhaps with a new worker.
        """
        if device.name in self._catching_up:
            return
        self._catching_up.add(device.name)
        try:
            for model in self._models.missing_on(device.name):
                try:
                    await serve_again(model, self._services, [device])
                except BraidError as error:
                    self._models.restored(model, error)
                    facts = {"model": model.name, "device": device.name, "reason": str(error)}
                    log.error("not served", extra=facts)
        finally:
            self._catching_up.discard(device.name)

    async def withdraw(self, device: str, digest: str, error: DamagedArtefact) -> None:
        """Stop serving the models of a digest on a device that lost them."""
        for model in self._models.using(digest, device):
            if await self._models.leave(model, device):
                await self._damaged(model, error)

    async def _damaged(self, model: ModelVersion, error: BraidError) -> None:
        facts = {"model": model.name, "version": model.version, "reason": str(error)}
        remedy = "it is fetched again" if self._is_shared else "register the same file again"
        log.error("model is damaged; %s", remedy, extra=facts)
        damage = error if isinstance(error, DamagedArtefact) else DamagedArtefact(str(error))
        if self._is_shared:
            folder = self._services.store.folder
            await asyncio.to_thread(folder.remove_artefact, model.artefact)
            self._models.restored(model, damage)
            return
        await self._change(model, ModelStatus.DAMAGED, str(damage))

    async def _change(self, model: ModelVersion, state: ModelStatus, message: str = "") -> None:
        """Set the state of a version; on a full disk, until the next start only."""
        self._models.register(replace(model, state=state, message=message))
        store = self._services.store
        with suppress(DiskFailure):
            await store.call(store.set_model_state, model.name, model.version, state, message)
