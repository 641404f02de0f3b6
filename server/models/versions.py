"""Keeps what serves in line with what was asked for: policies of versions, labels, batching.

    SetServing ──> checked ──> stored ──> wanted versions load ──> labels and policies count ──┐
    a new version serves ──────────────────────────────────────────────────────────────────────┤
    a version is deleted ──────────────────────────────────────────────────────────────────────┘
                                                     versions no longer wanted drain and unload <┘

What is new serves before what is old stops: there is no moment without an answer. A version that
fails to import changes nothing. What was unloaded by request stays so until a configuration or a
load asks for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any

from braid.core.background import log_failure
from braid.core.errors import BraidError, ModelNotFound, PreconditionFailed, VersionNotFound
from braid.server.models.loading import ModelLoader
from braid.server.models.serving_models import ServingModels
from braid.server.store.records import ModelState, ModelVersion, check_model_name
from braid.server.store.serving_config import ServingConfig
from braid.server.store.store import Store

log = logging.getLogger("braid.serving")

AVAILABLE = (ModelState.SERVING, ModelState.UNLOADED)
"""States of versions that were imported and could serve."""


class VersionPolicies:
    """The configurations of all models. Belongs to the event loop."""

    def __init__(self, store: Store, models: ServingModels, loader: ModelLoader) -> None:
        self._store = store
        self._models = models
        self._loader = loader
        self._turns: dict[str, asyncio.Lock] = {}
        self._going: set[tuple[str, int]] = set()  # versions being deleted: no policy wants them
        self._working: set[asyncio.Task[None]] = set()

    async def restore(self) -> None:
        """Let the stored configurations count; before any model serves."""
        for name, config in (await self._store.call(self._store.serving_configs)).items():
            self._models.configure(name, config)
        self._models.on_version = self._version_serves

    def config(self, name: str) -> ServingConfig:
        """How a model serves.

        Raises:
            ModelNotFound: nothing is registered under the name.
        """
        if not self._models.knows(name):
            raise ModelNotFound(name)
        return self._models.config(name)

    async def configure(self, name: str, config: ServingConfig) -> None:
        """Serve a model in this way; returns when it does. Once begun it completes.

        Raises:
            ModelNotFound: nothing is registered under the name.
            VersionNotFound: a label, or the policy, names a version that is not there.
            PreconditionFailed: such a version was not imported (yet); nothing has changed.
        """
        check_model_name(name)
        await self._loader.started()
        await asyncio.shield(self._in_turn(name, self._configure(name, config)))

    async def prepare_deletion(self, name: str, version: int) -> None:
        """Before a version goes: whatever the policy wants in its place answers already.

        Raises:
            PreconditionFailed: a label would be left pointing at nothing.
        """
        for label, number in self._models.config(name).labels.items():
            if number == version:
                raise PreconditionFailed(
                    f"{name} version {version} is labelled {label!r}; move the label first"
                )
        self._going.add((name, version))
        try:
            if self._models.answers(name):
                await self._in_turn(name, self._load_wanted(name))
        except BaseException:  # it stays, and policies want it as before
            self._going.discard((name, version))
            raise

    async def forget(self, name: str, versions: Iterable[int]) -> None:
        """After a deletion: if nothing is left of the model, its configuration goes, too."""
        self._going.difference_update((name, version) for version in versions)
        if not self._models.knows(name):
            await self._store.call(self._store.forget_serving_config, name)
            self._models.configure(name, ServingConfig())

    async def _configure(self, name: str, config: ServingConfig) -> None:
        present = {
            model.version: model for model in await self._store.call(self._store.versions, name)
        }
        for number in sorted({*config.labels.values(), *config.versions.specific}):
            if number not in present:
                raise VersionNotFound(name, str(number), tuple(present))
            if present[number].state not in AVAILABLE:
                raise PreconditionFailed(
                    f"{name} version {number} is {present[number].state.value}; wait until it is "
                    "imported, or name another"
                )
        wanted = config.wanted(n for n, model in present.items() if model.state in AVAILABLE)
        for number in sorted(wanted):
            await self._loader.serve_version(present[number])
        await self._store.call(self._store.put_serving_config, name, config)
        self._models.configure(name, config)
        await self._retire(name)

    async def _load_wanted(self, name: str) -> None:
        """Load what is wanted and does not serve."""
        present = await self._available(name)
        for number in sorted(self._models.config(name).wanted(present)):
            await self._loader.serve_version(present[number])

    async def _retire(self, name: str) -> None:
        """Unload what serves and is not wanted."""
        present = await self._available(name)
        for number in sorted(present.keys() - self._models.config(name).wanted(present)):
            await self._loader.unload_version(present[number])

    async def _available(self, name: str) -> dict[int, ModelVersion]:
        """Versions that were imported and are to stay, by number."""
        return {
            model.version: model
            for model in await self._store.call(self._store.models, name)
            if (name, model.version) not in self._going
            and (
                model.state in AVAILABLE
                or self._models.served_version(name, model.version) is not None
            )
        }

    def _version_serves(self, name: str) -> None:
        """A new version answers: older ones may have to go."""
        task = asyncio.get_running_loop().create_task(self._retire_surplus(name))
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        task.add_done_callback(log_failure)

    async def _retire_surplus(self, name: str) -> None:
        try:
            await self._in_turn(name, self._retire(name))
        except BraidError as error:
            log.warning("versions not retired", extra={"model": name, "kind": type(error).__name__})

    async def _in_turn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Changes of one name go one after the other."""
        async with self._turns.setdefault(name, asyncio.Lock()):
            await work
