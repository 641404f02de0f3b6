"""Whether the server is ready, and what it waits for: its start, a device, models."""

from collections.abc import Collection
from dataclasses import dataclass

from braid.server.devices.pool import Devices
from braid.server.models.serving_models import ServingModels
from braid.server.repository.repository import ModelRepository
from braid.server.servicers.health import Health

EVERY_MODEL = "*"
"""Among the names of BRAID_READY_MODELS: all models of the repository, broken ones, too."""


@dataclass(slots=True)
class Readiness:
    """Decides the server's health. Belongs to the event loop."""

    _health: Health
    _devices: Devices
    _ready_models: Collection[str]  # names of models that the server is ready only with
    _serving: ServingModels | None = None
    _repository: ModelRepository | None = None
    _takes_requests: bool = False
    _is_stopping: bool = False

    def follow(self, serving: ServingModels, repository: ModelRepository | None) -> None:
        self._serving, self._repository = serving, repository
        self._health.answers = lambda name: serving.answers(name) if serving.knows(name) else None

    @property
    def is_ready(self) -> bool:
        return self._health.is_ready

    def take_requests(self) -> None:
        self._takes_requests = True
        self.changed()

    def refuse_requests(self) -> bool:
        """Say that requests are no longer taken; returns whether they were."""
        took_requests, self._takes_requests = self._takes_requests, False
        self._is_stopping = True
        self.changed()
        return took_requests

    def changed(self) -> None:
        """Set the server's health: ready if requests are taken, a device and all models are up."""
        self._health.ready(not self.waits_for())

    def waits_for(self, *, with_names: bool = True) -> list[str]:
        """What keeps the server from being ready, in words; ``with_names``: of models, too."""
        if self._is_stopping:
            return ["the server stops"]
        waits = [] if self._takes_requests else ["the server starts"]
        if not self._devices.any_up:
            waits.append("no device is up")
        if missing := self.missing_models():
            listed = ", ".join(missing) if with_names else str(len(missing))
            waits.append(f"models that do not answer: {listed}")
        return waits

    def model_changed(self, name: str) -> None:
        """Tell of the health of a model, and of a server that is ready only with that model."""
        self._health.changed(name)
        if name in self._ready_models or self._repository is not None:
            self.changed()

    def missing_models(self) -> list[str]:
        """Names of models that the server is ready only with, and that do not answer."""
        serving, repository = self._serving, self._repository
        all_awaited = EVERY_MODEL in self._ready_models
        missing = {
            name
            for name in self._ready_models
            if name != EVERY_MODEL and (serving is None or not serving.answers(name))
        }
        if repository is not None:
            missing.update(repository.missing(with_broken=all_awaited))
        return sorted(missing)
