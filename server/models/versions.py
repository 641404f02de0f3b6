"""Versions of models by name: which answer, and why the others do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from braid.core.errors import (
    BraidError,
    DeviceOutOfMemory,
    ModelLoading,
    ModelNotFound,
    PreconditionFailed,
    Unavailable,
    VersionNotFound,
)
from braid.server.inference.routing import Replicas
from braid.server.observability.metrics import Metrics
from braid.server.store.records import ModelStatus, ModelVersion
from braid.server.store.serving_config import STABLE, ServingConfig

WHOLE_MODEL = 0
"""Version of a remark that is about no version in particular."""


class Remarks:
    """Why files of a model repository do not serve, by name and version."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, int], str] = {}

    def note(self, name: str, version: int, text: str) -> bool:
        """Set the remark on a version or a whole model, "" removes it; True: it is another one."""
        if self._texts.get((name, version), "") == text:
            return False
        self._texts[name, version] = text
        if not text:
            del self._texts[name, version]
        return True

    def all(self) -> Mapping[tuple[str, int], str]:
        return dict(self._texts)

    def over(self, model: ModelVersion) -> ModelVersion:
        """Return a version with the remarks on it as its message, if there are any."""
        versions = (model.version, WHOLE_MODEL)
        texts = [text for number in versions if (text := self._texts.get((model.name, number)))]
        return replace(model, message="; ".join(texts)) if texts else model


@dataclass(slots=True)
class ModelVersions:
    """Versions of one name; all fields are by version number."""

    versions: dict[int, ModelVersion] = field(default_factory=dict)
    served: dict[int, Replicas] = field(default_factory=dict)  # of those that answer
    restoring: set[int] = field(default_factory=set)  # will serve in a moment, as before
    away: set[int] = field(default_factory=set)  # not in memory; the next request loads them
    problems: dict[int, BraidError] = field(default_factory=dict)  # why a version was not restored
    # What will take the place of a version once it serves itself.
    replacements: dict[int, ModelVersion] = field(default_factory=dict)

    @property
    def newest(self) -> int:
        """Newest version that answers; else the newest that has not failed, else the newest."""
        if self.served or self.restoring or self.away:  # the usual case, asked by each request
            return max((*self.served, *self.restoring, *self.away))
        able = [number for number, row in self.versions.items() if not row.state.has_failed]
        return max(able or self.versions)

    def number(self, version: str, labels: Mapping[str, int]) -> int | None:
        """Number that a number, a label, or "" for the default means; None: there is none."""
        if not version:
            stable = labels.get(STABLE)
            return self.newest if stable is None else stable
        if version.isascii() and version.isdigit() and len(version) < 10:
            return int(version) if int(version) in self.versions else None
        return labels.get(version)

    def restored(self, number: int, problem: BraidError | None) -> None:
        """Record that a version serves again, or that a ``problem`` prevents it.

        One that is away stays so if the problem may pass: the next request tries again.
        """
        if number not in self.versions:
            return
        self.restoring.discard(number)
        if problem is None or number in self.served:
            return
        if number in self.away and isinstance(problem, Unavailable | DeviceOutOfMemory):
            return
        self.away.discard(number)
        self.problems[number] = problem

    def expects(self, model: ModelVersion) -> bool:
        """True if a version is registered for these bytes and options, or is about to be."""
        rows = (self.versions.get(model.version), self.replacements.get(model.version))
        return any(row is not None and row.is_same(model) for row in rows)

    def as_seen(self, model: ModelVersion) -> ModelVersion:
        """Return a version as callers see it: one that is not restored yet is LOADING."""
        if model.version in self.served:
            return model
        if model.version in self.restoring:
            return replace(model, state=ModelStatus.LOADING, message="is being loaded")
        if model.version in self.away:
            return replace(model, message="not in memory; the next request loads it")
        if model.state is not ModelStatus.SERVING:
            return model
        problem = self.problems.get(model.version)
        return replace(model, message=f"does not serve: {problem}") if problem else model

    def refusal(self, number: int) -> BraidError:
        model = self.versions[number]
        label = f"model {model.name!r} version {number}"
        if number in self.restoring or number in self.away:
            return ModelLoading(f"{label} is being loaded; try again in a moment")
        if model.state is ModelStatus.UNLOADED:
            return PreconditionFailed(f"{label} is unloaded; load it again to use it")
        if model.state is ModelStatus.FAILED:
            return PreconditionFailed(f"{label} could not be imported: {model.message}")
        if model.state is ModelStatus.DAMAGED:
            return PreconditionFailed(f"{label} does not serve: {model.message}")
        if (problem := self.problems.get(number)) is not None:
            kind = ModelLoading if isinstance(problem, Unavailable) else PreconditionFailed
            return kind(f"{label} does not serve: {problem}")
        if model.state is ModelStatus.LOADING:
            return ModelLoading(
                f"{label} is being imported; watch its job, or try again in a moment",
            )
        return ModelLoading(f"{label} is being loaded; try again in a moment")


OnServing = Callable[[str, bool], None]
"""Told a model's name and whether any of its versions answers now."""

DEFAULT_CONFIG = ServingConfig()
NONE = ModelVersions()  # never changed


class KnownModels:
    """Versions, configurations and remarks of models, by name. Belongs to the event loop."""

    def __init__(self, metrics: Metrics, on_serving: OnServing) -> None:
        self.remarks = Remarks()
        self._metrics = metrics
        self._on_serving = on_serving
        self._names: dict[str, ModelVersions] = {}
        self._configs: dict[str, ServingConfig] = {}

    def number(self, name: str, version: str) -> int:
        """Version that a number, a label, or "" means (see ``for_request``); or NotFound."""
        entry = self._names.get(name)
        if entry is None:
            raise ModelNotFound(name)
        number = entry.number(version, self._configs.get(name, DEFAULT_CONFIG).labels)
        if number is None:
            raise VersionNotFound(name, version, tuple(sorted(entry.versions)))
        return number

    def as_seen(self, model: ModelVersion) -> ModelVersion:
        return self.remarks.over(self._entry(model.name).as_seen(model))

    def restoring(self, model: ModelVersion) -> None:
        """Record a version that served before the restart, and will again in a moment."""
        self.register(model)
        self._names[model.name].restoring.add(model.version)

    def restored(self, model: ModelVersion, problem: BraidError | None = None) -> None:
        self._entry(model.name).restored(model.version, problem)

    def was_not_restored(self, model: ModelVersion) -> bool:
        return model.version in self._entry(model.name).problems

    def _entry(self, name: str) -> ModelVersions:
        return self._names.get(name, NONE)

    def knows(self, name: str) -> bool:
        return name in self._names

    def states(self, name: str) -> set[ModelStatus]:
        return {row.state for row in self._entry(name).versions.values()}

    def answers(self, name: str) -> bool:
        """Whether a version answers; one that is not in memory does once a request loads it."""
        entry = self._entry(name)
        return bool(entry.served or entry.away)

    def is_away(self, name: str, version: int) -> bool:
        """Whether the next request for a version loads it."""
        return version in self._entry(name).away

    def is_coming(self, name: str, version: int) -> bool:
        """Whether a request may wait for a version: it is restored, or not in memory."""
        entry = self._entry(name)
        return version in entry.away or version in entry.restoring

    def away(self, model: ModelVersion) -> None:
        """Record a version of the store that the next request loads."""
        self.register(model)
        entry = self._names[model.name]
        entry.restoring.discard(model.version)
        entry.away.add(model.version)
        self._on_serving(model.name, True)

    def records(self) -> dict[str, dict[int, ModelVersion]]:
        return {name: dict(entry.versions) for name, entry in self._names.items()}

    def names_of(self, digest: str) -> str:
        """Versions whose artefact has a key, in one text: "a version 1, b version 2"."""
        return ", ".join(
            f"{name} version {number}"
            for name, entry in self._names.items()
            for number, model in entry.versions.items()
            if model.artefact == digest
        )

    def record(self, name: str, version: int) -> ModelVersion | None:
        return self._entry(name).versions.get(version)

    def config(self, name: str) -> ServingConfig:
        return self._configs.get(name, DEFAULT_CONFIG)

    def configs(self) -> dict[str, ServingConfig]:
        return dict(self._configs)

    def versions(self) -> list[tuple[ModelVersion, bool]]:
        """Every version as callers see it, and whether it answers."""
        return [
            (entry.as_seen(model), number in entry.served or number in entry.away)
            for entry in self._names.values()
            for number, model in entry.versions.items()
        ]

    def register(self, model: ModelVersion) -> None:
        """Record a version, or its new state; one that has failed has no series of its own."""
        if model.name not in self._names:
            self._names[model.name] = ModelVersions()
            self._on_serving(model.name, False)
        entry = self._names[model.name]
        entry.versions[model.version] = model
        if model.state is not ModelStatus.SERVING:
            entry.away.discard(model.version)
        if model.state.has_failed:
            self._metrics.remove_model(model.name, model.version)
        else:
            self._metrics.add_model(model.name, model.version)

    def replacing(self, model: ModelVersion) -> None:
        self._names[model.name].replacements[model.version] = model

    def give_up(self, model: ModelVersion) -> bool:
        waiting = self._entry(model.name).replacements
        if waiting.get(model.version) is not model:
            return False
        del waiting[model.version]
        return True
