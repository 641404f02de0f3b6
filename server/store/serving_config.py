"""Configuration of how a model serves: versions, labels, batching.

Kept by name, beside the versions, and changed while they serve.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from braid.core.errors import InvalidRequest
from braid.server.store.batching_policy import BatchPolicy, queue_limit_s

STABLE = "stable"
"""The label of the version that answers requests which name none."""

MAX_LABELS = 32
MAX_SPECIFIC = 256

_LABEL = re.compile(r"[a-z][a-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Choice of the versions that serve: the newest few, the named ones, or (neither given) all."""

    latest: int | None = None
    specific: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.latest is not None and (self.latest < 1 or self.specific):
            raise InvalidRequest("give the number of latest versions (1 or more), or their numbers")
        if len(self.specific) > MAX_SPECIFIC or any(number < 1 for number in self.specific):
            raise InvalidRequest(f"name 1 to {MAX_SPECIFIC} versions by their numbers, from 1")
        object.__setattr__(self, "specific", tuple(sorted(set(self.specific))))

    def select(self, available: Iterable[int]) -> set[int]:
        if self.latest is not None:
            return set(sorted(available)[-self.latest :])
        return set(available) & set(self.specific) if self.specific else set(available)


@dataclass(frozen=True, slots=True)
class Batching:
    """Changes of one model to the server's own batch policy."""

    max_wait_ms: float | None = None
    split_requests: bool | None = None
    max_queue_requests: int | None = None
    max_queue_rows: int | None = None
    max_queue_ms: float | None = None  # 0: no limit
    share: float | None = None

    def __post_init__(self) -> None:
        self.over(BatchPolicy())  # raises what is out of range

    def over(self, policy: BatchPolicy) -> BatchPolicy:
        wanted = {
            "max_wait_s": None if self.max_wait_ms is None else self.max_wait_ms / 1000,
            "split_requests": self.split_requests,
            "max_requests": self.max_queue_requests,
            "max_rows": self.max_queue_rows,
            "max_queue_s": None if self.max_queue_ms is None else queue_limit_s(self.max_queue_ms),
            "share": self.share,
        }
        changes: dict[str, Any] = {k: v for k, v in wanted.items() if v is not None}
        return replace(policy, **changes)


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """Versions, labels and batching of one model."""

    versions: VersionPolicy = field(default_factory=VersionPolicy)
    labels: Mapping[str, int] = field(default_factory=dict)
    batching: Batching = field(default_factory=Batching)

    def __post_init__(self) -> None:
        if len(self.labels) > MAX_LABELS:
            raise InvalidRequest(f"at most {MAX_LABELS} labels, not {len(self.labels)}")
        for label, version in self.labels.items():
            if not _LABEL.fullmatch(label):
                raise InvalidRequest(
                    f"label {label[:40]!r} is not 1 to 32 lower-case letters, digits, '_' or '-', "
                    "beginning with a letter"
                )
            if version < 1:
                raise InvalidRequest(f"label {label!r} names version {version}; they begin at 1")

    def wanted(self, available: Iterable[int]) -> set[int]:
        """Select the ``available`` versions that serve: by policy, or because of a label."""
        known = set(available)
        return self.versions.select(known) | (known & set(self.labels.values()))


def config_from_json(document: Mapping[str, Any]) -> ServingConfig:
    versions = document["versions"]
    return ServingConfig(
        VersionPolicy(versions["latest"], tuple(versions["specific"])),
        document["labels"],
        Batching(**document["batching"]),
    )
