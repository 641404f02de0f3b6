"""Configuration of how a model serves: versions, labels, batching, interface.

Kept by name, beside the versions, and changed while they serve.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from braid.core.errors import InvalidRequest
from braid.server.store.interface import Interface


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """Limits and preferences; everything else follows from latencies and arrivals."""

    max_wait_s: float = 0.005  # for more rows, with the device idle; 0: never wait
    max_requests: int = 1024  # that wait
    max_rows: int = 4096  # that wait
    max_queue_s: float = inf  # expected wait for the device; what would wait longer is refused
    side_by_side: bool = True  # batches on parts of a device's threads, where that pays
    share: float = 1.0  # of the device's time, relative to other models that have work
    explore_share: float = 0.1  # of requests for plans that are not the best; 0: none is tried
    plan: str = ""  # pinned: it serves wherever a schedule has it, and nothing is tried

    def __post_init__(self) -> None:
        if not 0 <= self.max_wait_s <= 10:
            raise InvalidRequest(f"waiting {self.max_wait_s} s for a batch; allowed are 0 to 10 s")
        if not 0.001 <= self.share <= 1000:
            raise InvalidRequest(f"a share of {self.share}; allowed are 0.001 to 1000")
        if not self.max_queue_s > 0:
            raise InvalidRequest(f"a longest wait of {self.max_queue_s} s; it must be above 0")
        if self.max_requests < 1 or self.max_rows < 1:
            raise InvalidRequest("a queue takes at least 1 request and 1 row")


def queue_limit_s(max_queue_ms: float) -> float:
    """The longest expected wait as people set it, in milliseconds, 0 being none."""
    return max_queue_ms / 1000 or inf


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
    max_queue_requests: int | None = None
    max_queue_rows: int | None = None
    max_queue_ms: float | None = None  # 0: no limit
    share: float | None = None

    def __post_init__(self) -> None:
        self.over(BatchPolicy())  # raises what is out of range

    def over(self, policy: BatchPolicy) -> BatchPolicy:
        wanted = {
            "max_wait_s": None if self.max_wait_ms is None else self.max_wait_ms / 1000,
            "max_requests": self.max_queue_requests,
            "max_rows": self.max_queue_rows,
            "max_queue_s": None if self.max_queue_ms is None else queue_limit_s(self.max_queue_ms),
            "share": self.share,
        }
        changes: dict[str, Any] = {k: v for k, v in wanted.items() if v is not None}
        return replace(policy, **changes)


PINNED, RESIDENT, ON_DEMAND = "pinned", "resident", "on-demand"
KINDS = (PINNED, RESIDENT, ON_DEMAND)
"""Of residency: never unloaded; unloaded if memory is needed; also if it is not used."""

MAX_IDLE_S = 31_536_000.0


@dataclass(frozen=True, slots=True)
class Residency:
    """When a model is in memory, and what requests get that come while it is not."""

    kind: str = RESIDENT
    idle_s: float | None = None  # without a request, until it is unloaded; None: as the server says
    refuses: bool = False  # requests that find it unloaded are told UNAVAILABLE, and do not wait

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidRequest(f"residency {self.kind[:50]!r}; there are {', '.join(KINDS)}")
        if self.idle_s is not None and not 0 < self.idle_s <= MAX_IDLE_S:
            raise InvalidRequest(f"unloading after {self.idle_s} s without requests; above 0")
        if self.idle_s is not None and self.kind != ON_DEMAND:
            raise InvalidRequest(f"seconds without requests are for {ON_DEMAND}, not {self.kind}")


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """Versions, labels, batching, residency and interface of one model."""

    versions: VersionPolicy = field(default_factory=VersionPolicy)
    labels: Mapping[str, int] = field(default_factory=dict)
    batching: Batching = field(default_factory=Batching)
    residency: Residency = field(default_factory=Residency)
    interface: Interface = field(default_factory=Interface)  # of a ModelConfig; else the model's
    plan: str = ""  # planner or runtime that serves whatever requests show; empty: the fastest

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

    def answering(self, version: int) -> ServingConfig:
        """Return the configuration with requests that name no version sent to ``version``."""
        return replace(self, labels={**self.labels, STABLE: version})

    def wanted(self, available: Iterable[int]) -> set[int]:
        """Select the ``available`` versions that serve: by policy, or because of a label."""
        numbers = set(available)
        return self.versions.select(numbers) | (numbers & set(self.labels.values()))
