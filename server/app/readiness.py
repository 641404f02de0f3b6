"""Whether the server is ready: requests are taken, a device is up, and awaited models answer."""

from __future__ import annotations

from collections.abc import Collection

from braid.server.devices.pool import Devices
from braid.server.models.serving_models import ServingModels
from braid.server.repository.repository import ModelRepository
from braid.server.servicers.health import Health


class Readiness:
    """Decides the server's health. Belongs to the event loop."""

    def __init__(self, health: Health, devices: Devices, ready_models: Collection[str]) -> None:
        """Be not ready; ``ready_models`` are names of models that the server is ready only with."""
        self._health = health
        self._devices = devices
        self._ready_models = ready_models
        self._serving: ServingModels | None = None
        self._repository: ModelRepository | None = None
        self._takes_requests = False

    def follow(self, serving: ServingModels, repository: ModelRepository | None) -> None:
        """Await models of ``serving``, and those that a model repository holds."""
        self._serving, self._repository = serving, repository

    @property
    def is_ready(self) -> bool:
        """True if load balancers may send requests."""
        return self._health.is_ready

    def take_requests(self) -> None:
        self._takes_requests = True
        self.changed()

    def refuse_requests(self) -> bool:
        """Say that requests are no longer taken; returns whether they were."""
        took_requests, self._takes_requests = self._takes_requests, False
        self.changed()
        return took_requests

    def changed(self) -> None:
        """Set the server's health: ready if requests are taken, a device and all models are up."""
        is_up = self._takes_requests and self._devices.any_up
        self._health.ready(is_up and not self.missing_models())

    def model_answers(self, name: str, answers: bool) -> None:
        """Set the health of a model, and of a server that is ready only with that model.

        A model that is no longer registered has none.
        """
        if self._serving is None or self._serving.knows(name):
            self._health.model(name, answers)
        else:
            self._health.forget_model(name)
        if name in self._ready_models or self._repository is not None:
            self.changed()

    def missing_models(self) -> list[str]:
        """Names of models that the server is ready only with, and that do not answer."""
        serving, repository = self._serving, self._repository
        missing = [
            name for name in self._ready_models if serving is None or not serving.answers(name)
        ]
        return missing + (repository.missing if repository is not None else [])
