"""Versions of models by name: which answer, and why the others do not."""

import asyncio
import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from braid.core.errors import (
    BraidError,
    DeviceOutOfMemory,
    ModelLoading,
    ModelNotFound,
    PreconditionFailed,
    Unavailable,
    VersionNotFound,
)
from braid.core.keyed_locks import KeyedLocks
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


class Coming(enum.Enum):
    """Why a version that is not in memory will answer."""

    RESTORING = "it answered before the restart, and is loaded in a moment"
    AWAY = "the next request loads it"


@dataclass(slots=True, eq=False)
class KnownVersion:
    """A registered version, and whether it answers."""

    row: ModelVersion
    now: Replicas | Coming | BraidError | None = None
    """Its replicas; why it will answer; why it was not restored; None: it is not to answer yet."""
    replacement: ModelVersion | None = None  # takes its place once it serves itself
    load: asyncio.Task[BraidError | None] | None = None  # of a version that is ``Coming``
    waiting: int = 0  # requests that wait for its load

    @property
    def served(self) -> Replicas | None:
        return self.now if isinstance(self.now, Replicas) else None

    @property
    def answers(self) -> bool:
        """Whether it answers; one that is not in memory does once a request loads it."""
        return self.now is Coming.AWAY or isinstance(self.now, Replicas)

    def expects(self, model: ModelVersion) -> bool:
        """True if it is registered for these bytes and options, or is about to be."""
        rows = self.row, self.replacement
        return any(row is not None and row.is_same(model) for row in rows)

    def as_seen(self, model: ModelVersion) -> ModelVersion:
        """Return its row as callers see it: one that is not restored yet is LOADING."""
        if self.now is Coming.RESTORING:
            return replace(model, state=ModelStatus.LOADING, message="is being loaded")
        if self.now is Coming.AWAY:
            return replace(model, message="not in memory; the next request loads it")
        if isinstance(self.now, BraidError) and model.state is ModelStatus.SERVING:
            return replace(model, message=f"does not serve: {self.now}")
        return model

    def refusal(self) -> BraidError:
        model, problem = self.row, self.now
        label = f"model {model.name!r} version {model.version}"
        if isinstance(problem, Coming):
            return ModelLoading(f"{label} is being loaded; try again in a moment")
        if model.state is ModelStatus.UNLOADED:
            return PreconditionFailed(f"{label} is unloaded; load it again to use it")
        if model.state is ModelStatus.FAILED:
            return PreconditionFailed(f"{label} could not be imported: {model.message}")
        if model.state is ModelStatus.DAMAGED:
            return PreconditionFailed(f"{label} does not serve: {model.message}")
        if isinstance(problem, BraidError):
            kind = ModelLoading if isinstance(problem, Unavailable) else PreconditionFailed
            return kind(f"{label} does not serve: {problem}")
        if model.state is ModelStatus.LOADING:
            return ModelLoading(
                f"{label} is being imported; watch its job, or try again in a moment",
            )
        return ModelLoading(f"{label} is being loaded; try again in a moment")


Versions = dict[int, KnownVersion]
"""Versions of one name by number, ascending."""


def number_of(versions: Versions, version: str, labels: Mapping[str, int]) -> int | None:
    """Number that a number, a label, or "" for the default means; None: there is none."""
    if not version:
        stable = labels.get(STABLE)
        return _newest(versions) if stable is None else stable
    if version.isascii() and version.isdigit() and len(version) < 10:
        return int(version) if int(version) in versions else None
    return labels.get(version)


def _newest(versions: Versions) -> int:
    """Newest version that answers; else the newest that has not failed, else the newest."""
    for number in reversed(versions):
        if isinstance(versions[number].now, Replicas | Coming):
            return number
    able = [number for number, known in versions.items() if not known.row.state.has_failed]
    return max(able or versions)


OnChange = Callable[[str], None]
"""Told the name of a model that is new, is gone, or begins or ends to answer."""

DEFAULT_CONFIG = ServingConfig()


class KnownModels:
    """Versions, configurations and remarks of models, by name. Belongs to the event loop."""

    def __init__(self, metrics: Metrics, on_change: OnChange) -> None:
        self.remarks = Remarks()
        self.turns = KeyedLocks()
        """Locks by model name: loads, unloads, configurations and deletions take turns."""
        self._metrics = metrics
        self._on_change = on_change
        self._names: dict[str, dict[int, KnownVersion]] = {}
        self._configs: dict[str, ServingConfig] = {}

    def number(self, name: str, version: str) -> int:
        """Version that a number, a label, or "" means (see ``for_request``); or NotFound."""
        versions = self._names.get(name)
        if versions is None:
            raise ModelNotFound(name)
        number = number_of(versions, version, self.config(name).labels)
        if number is None:
            raise VersionNotFound(name, version, tuple(versions))
        return number

    def find(self, name: str, version: int) -> KnownVersion | None:
        return self._names.get(name, {}).get(version)

    def _all(self) -> Iterator[KnownVersion]:
        """All versions, of each name the newest first: requests look for one that answers."""
        for versions in self._names.values():
            yield from reversed(versions.values())

    def as_seen(self, model: ModelVersion) -> ModelVersion:
        known = self.find(model.name, model.version)
        return self.remarks.over(model if known is None else known.as_seen(model))

    def restoring(self, model: ModelVersion) -> None:
        """Record a version that served before the restart, and will again in a moment."""
        self._registered(model).now = Coming.RESTORING

    @property
    def to_restore(self) -> list[ModelVersion]:
        return [known.row for known in self._all() if known.now is Coming.RESTORING]

    def away(self, model: ModelVersion) -> None:
        """Record a version of the store that the next request loads."""
        self._registered(model).now = Coming.AWAY
        self._on_change(model.name)

    def restored(self, model: ModelVersion, problem: BraidError | None = None) -> None:
        """Record that a version serves again, or that a ``problem`` prevents it.

        One that is away stays so if the problem may pass: the next request tries again.
        """
        known = self.find(model.name, model.version)
        if known is None or known.served is not None:
            return
        passes = isinstance(problem, Unavailable | DeviceOutOfMemory)
        if known.now is Coming.RESTORING or (problem and not (known.now is Coming.AWAY and passes)):
            known.now = problem
            self._on_change(model.name)

    def was_not_restored(self, model: ModelVersion) -> bool:
        known = self.find(model.name, model.version)
        return known is not None and isinstance(known.now, BraidError)

    def knows(self, name: str) -> bool:
        return name in self._names

    def states(self, name: str) -> set[ModelStatus]:
        return {known.row.state for known in self._names.get(name, {}).values()}

    def answers(self, name: str) -> bool:
        """Whether a version answers; one that is not in memory does once a request loads it."""
        return any(known.answers for known in self._names.get(name, {}).values())

    def is_away(self, name: str, version: int) -> bool:
        """Whether the next request for a version loads it."""
        known = self.find(name, version)
        return known is not None and known.now is Coming.AWAY

    def is_coming(self, name: str, version: int) -> bool:
        """Whether a request may wait for a version: it is restored, or not in memory."""
        known = self.find(name, version)
        return known is not None and isinstance(known.now, Coming)

    def records(self) -> dict[str, dict[int, ModelVersion]]:
        return {
            name: {number: known.row for number, known in versions.items()}
            for name, versions in self._names.items()
        }

    def names_of(self, digest: str) -> str:
        """Versions whose artefact has a key, in one text: "a version 1, b version 2"."""
        rows = [known.row for known in self._all() if known.row.artefact == digest]
        return ", ".join(f"{row.name} version {row.version}" for row in rows)

    def record(self, name: str, version: int) -> ModelVersion | None:
        known = self.find(name, version)
        return None if known is None else known.row

    def config(self, name: str) -> ServingConfig:
        return self._configs.get(name, DEFAULT_CONFIG)

    def configs(self) -> dict[str, ServingConfig]:
        return dict(self._configs)

    def versions(self) -> list[tuple[ModelVersion, bool]]:
        """Every version as callers see it, and whether it answers."""
        return [(known.as_seen(known.row), known.answers) for known in self._all()]

    def register(self, model: ModelVersion) -> None:
        """Record a version, or its new state; one that has failed has no series of its own."""
        self._registered(model)

    def _registered(self, model: ModelVersion) -> KnownVersion:
        versions = self._names.get(model.name, {})
        known = versions.get(model.version)
        if known is None:
            known = KnownVersion(model)
            self._names[model.name] = dict(sorted({**versions, model.version: known}.items()))
        if not versions:
            self._on_change(model.name)
        known.row = model
        if known.now is Coming.AWAY and model.state is not ModelStatus.SERVING:
            known.now = None
        if model.state.has_failed:
            self._metrics.remove_model(model.name, model.version)
        else:
            self._metrics.add_model(model.name, model.version)
        return known

    def replacing(self, model: ModelVersion) -> None:
        """Record what takes the place of a version that serves, once it serves itself."""
        self._names[model.name][model.version].replacement = model

    def give_up(self, model: ModelVersion) -> bool:
        """Forget what was to take a version's place; True: it has not taken it yet."""
        known = self.find(model.name, model.version)
        if known is None or known.replacement is not model:
            return False
        known.replacement = None
        return True
