"""All versions of one model's name: which are known, which answer, and why the others do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from braid.core.errors import BraidError, ModelLoading, PreconditionFailed, Unavailable
from braid.server.inference.routing import Replicas
from braid.server.store.records import ModelStatus, ModelVersion
from braid.server.store.serving_config import STABLE


@dataclass(slots=True)
class ModelVersions:
    """Versions of one name; all fields are by version number."""

    versions: dict[int, ModelVersion] = field(default_factory=dict)
    served: dict[int, Replicas] = field(default_factory=dict)  # of those that answer
    restoring: set[int] = field(default_factory=set)  # will serve in a moment, as before
    problems: dict[int, BraidError] = field(default_factory=dict)  # why a version was not restored
    # What this server says of a version that answers, by what it is about.
    notes: dict[int, dict[str, str]] = field(default_factory=dict)
    # What will take the place of a version once it serves itself.
    replacements: dict[int, ModelVersion] = field(default_factory=dict)

    @property
    def newest(self) -> int:
        """Newest version that answers; else the newest that has not failed, else the newest."""
        if self.served or self.restoring:  # the usual case, which each request asks for
            return max((*self.served, *self.restoring))
        able = [number for number, each in self.versions.items() if not each.state.has_failed]
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
        """Record that a version serves again, or that a ``problem`` prevents it."""
        if number not in self.versions:
            return
        self.restoring.discard(number)
        if problem is not None and number not in self.served:
            self.problems[number] = problem

    def expects(self, model: ModelVersion) -> bool:
        """True if a version is registered for these bytes and options, or is about to be."""
        known = (self.versions.get(model.version), self.replacements.get(model.version))
        return any(each is not None and each.is_same(model) for each in known)

    def as_seen(self, model: ModelVersion) -> ModelVersion:
        """Return a version as callers see it: one that is not restored yet is LOADING."""
        if model.version in self.served:
            texts = [model.message, *self.notes.get(model.version, {}).values()]
            return replace(model, message="; ".join(filter(None, texts)))
        if model.version in self.restoring:
            return replace(model, state=ModelStatus.LOADING, message="is being loaded")
        if model.state is not ModelStatus.SERVING:
            return model
        problem = self.problems.get(model.version)
        return replace(model, message=f"does not serve: {problem}") if problem else model

    def refusal(self, number: int) -> BraidError:
        """Error that says why a version does not answer."""
        model = self.versions[number]
        label = f"model {model.name!r} version {number}"
        if number in self.restoring:
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
                f"{label} is being imported; watch its job, or try again in a moment"
            )
        return ModelLoading(f"{label} is being loaded; try again in a moment")
