"""What a load generator is asked to do and what it answers. Plain data, sent as JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Something that speaks the Open Inference Protocol and answers FP32 ``x`` times ``scale``."""

    name: str
    address: str
    model: str
    scale: float
    shared_memory: bool = False  # tensors lie in system shared memory, not in the messages


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadJob:
    """A pattern of load.

    Closed loop: each client sends its next request when it has its answer. Open loop: requests
    begin at random moments (Poisson) at ``rate_per_s`` together, whatever became of the others,
    over the clients' connections in turn.
    """

    clients: int
    warmup_s: float
    measure_s: float
    rate_per_s: float | None = None  # None: closed loop
    timeout_s: float = 30.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(LoadJob):
    """What to load, and how."""

    address: str
    model: str
    scale: float
    shape: tuple[int, ...]
    shared_memory: bool = False


@dataclass(slots=True)
class Samples:
    """What the clients saw after the warm-up.

    A latency of the open loop counts from the moment when the request was due, so that a client
    that falls behind cannot hide what its requests waited.
    """

    seconds: float = 0.0
    answers_per_s: float = 0.0  # as ``benchmarks.peers`` counts; 0: not counted
    latency_us: list[int] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    @classmethod
    def from_json(cls, text: str) -> Samples:
        said = json.loads(text)
        return cls(**{**said, "errors": Counter(said["errors"])})

    def to_json(self) -> str:
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return json.dumps(fields)

    def merge(self, other: Samples) -> None:
        """Add what another process saw in the same time."""
        self.seconds = max(self.seconds, other.seconds)
        self.answers_per_s += other.answers_per_s
        self.errors.update(other.errors)
        self.latency_us.extend(other.latency_us)
