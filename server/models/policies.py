"""Keeps what serves in line with what was asked for: policies of versions, labels, batching.

What is new serves before what is old stops: there is no moment without an answer. A version that
fails to import changes nothing. What was unloaded by request stays so until a configuration or a
load asks for it. Each change holds the turn of its name (``ServingModels.turns``) from its first
look at the versions to its end.
"""

import logging
from collections.abc import Collection
from dataclasses import replace

from braid.core.background import BackgroundTasks, though_callers_leave
from braid.core.errors import BraidError, ModelNotFound, PreconditionFailed, VersionNotFound
from braid.server.models.loading import ModelLoader
from braid.server.models.serving_models import ServingModels
from braid.server.store.records import ModelStatus, ModelVersion, check_model_name
from braid.server.store.serving_config import PINNED, STABLE, Residency, ServingConfig
from braid.server.store.store import Store

log = logging.getLogger("braid.serving")

AVAILABLE = (ModelStatus.SERVING, ModelStatus.UNLOADED)
"""States of versions that were imported and could serve."""


class VersionPolicies:
    """Applies version policies, labels and batching of models. Belongs to the event loop."""

    def __init__(self, store: Store, models: ServingModels, loader: ModelLoader) -> None:
        self._store = store
        self._models = models
        self._loader = loader
        self._background = BackgroundTasks()

    async def restore(self) -> None:
        """Apply the stored configurations; called before any model serves."""
        for name, config in (await self._store.call(self._store.serving_configs)).items():
            self._models.configure(name, config)

    def config(self, name: str) -> ServingConfig:
        if not self._models.knows(name):
            raise ModelNotFound(name)
        return self._models.config(name)

    async def configure(
        self, name: str, config: ServingConfig, had_served: Collection[int] = ()
    ) -> None:
        """Apply a configuration; returns when the wanted versions serve. Once begun it completes.

        ``had_served``: versions that served a moment ago; one that was unloaded since stays so.
        Raises ModelNotFound, VersionNotFound, or PreconditionFailed: a version was not imported
        (yet), and nothing has changed.
        """
        check_model_name(name)
        await self._loader.ready_to_change(name)
        await though_callers_leave(self._configure(name, config, had_served))

    async def announce(self, name: str, config: ServingConfig) -> None:
        """Store a configuration for versions that come; none is loaded or unloaded for it now.

        The name need not be registered yet.
        """
        check_model_name(name)
        await self._loader.ready_to_change(name)
        async with self._models.turns.of(name):
            await self._store.call(self._store.put_serving_config, name, config)
            self._models.configure(name, config)

    async def answer_with(self, name: str, version: int) -> None:
        """Move the label of the version that answers requests that name none, if there is one."""
        config = self._models.config(name)
        if config.labels.get(STABLE, version) != version:
            await self.configure(name, config.answering(version))

    async def set_residency(self, name: str, residency: Residency) -> None:
        """Store when a model is in memory; the name need not be registered yet."""
        await self.announce(name, replace(self._models.config(name), residency=residency))

    async def pin(self, name: str, plan: str) -> None:
        """Let one plan serve wherever a schedule has it; "": requests decide again.

        Returns once that is so. The name need not be registered yet.
        """
        await self.announce(name, replace(self._models.config(name), plan=plan))
        await self._models.follow_plans(name)

    async def delete(self, name: str, version: str) -> None:
        """Refuse new requests, finish accepted ones, then remove; completes once begun.

        What the policy wants in place of the deleted version answers before. ``version``: a number
        or a label; "" for all. Raises NotFound, or PreconditionFailed: the version has a label.
        """
        await self._loader.ready_to_change(name)
        await though_callers_leave(self._delete(name, version))

    async def _configure(
        self, name: str, config: ServingConfig, had_served: Collection[int]
    ) -> None:
        async with self._models.turns.of(name):
            versions = await self._store.call(self._store.versions, name)
            present = {model.version: model for model in versions}
            _check_available(name, config, present)
            wanted = config.wanted(n for n, model in present.items() if model.state in AVAILABLE)
            asleep = {n for n, model in present.items() if model.state is ModelStatus.UNLOADED}
            is_pinned = config.residency.kind == PINNED
            for number in sorted(wanted - (asleep & {*had_served})):
                await self._loader.serve_version(present[number], in_memory=is_pinned)
            await self._store.call(self._store.put_serving_config, name, config)
            self._models.configure(name, config)
            await self._retire(name)

    async def _delete(self, name: str, version: str) -> None:
        number = self._models.number(name, version) if version else None
        await self._loader.cancel_imports(name, number)
        async with self._models.turns.of(name):
            if version:
                number = self._models.number(name, version)
                doomed = [await self._store.call(self._store.find_model, name, number)]
                await self._replace(name, number)
            else:
                doomed = await self._store.call(self._store.versions, name)
            try:
                for model in doomed:
                    await self._loader.delete_version(model)
            finally:
                if not self._models.knows(name):
                    await self._store.call(self._store.forget_serving_config, name)
                    self._models.configure(name, ServingConfig())

    async def _replace(self, name: str, doomed: int) -> None:
        """Load what the policy wants then. PreconditionFailed: a label would point at nothing."""
        config = self._models.config(name)
        for label, number in config.labels.items():
            if number == doomed:
                raise PreconditionFailed(
                    f"{name} version {doomed} is labelled {label!r}; move the label first"
                )
        if self._models.answers(name):
            present = await self._available(name)
            present.pop(doomed, None)
            for number in sorted(config.wanted(present)):
                await self._loader.serve_version(present[number])

    async def _retire(self, name: str) -> None:
        present = await self._available(name)
        for number in sorted(present.keys() - self._models.config(name).wanted(present)):
            await self._loader.unload_version(present[number])

    async def _available(self, name: str) -> dict[int, ModelVersion]:
        return {
            model.version: model
            for model in await self._store.call(self._store.models, name)
            if model.state in AVAILABLE
            or self._models.served_version(name, model.version) is not None
        }

    def version_serves(self, name: str) -> None:
        """Unload the older versions that the policy does not want beside a new one."""
        self._background.start(self._retire_surplus(name))

    async def _retire_surplus(self, name: str) -> None:
        try:
            async with self._models.turns.of(name):
                await self._retire(name)
        except BraidError as error:
            log.warning("versions not retired", extra={"model": name, "kind": type(error).__name__})


def _check_available(name: str, config: ServingConfig, present: dict[int, ModelVersion]) -> None:
    """Raise VersionNotFound or PreconditionFailed unless all versions that are named can serve."""
    for number in sorted({*config.labels.values(), *config.versions.specific}):
        if number not in present:
            raise VersionNotFound(name, str(number), tuple(present))
        if present[number].state not in AVAILABLE:
            raise PreconditionFailed(
                f"{name} version {number} is {present[number].state.value}; wait until it is "
                "imported, or name another"
            )
