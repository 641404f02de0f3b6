"""What a comparison writes: one Case a model and batching, a file each, with every turn in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.reports import write_report

OFF, DYNAMIC = "off", "dynamic"
BATCHINGS = (OFF, DYNAMIC)
ECHO = "echo"
"""The contender that is no peer: it returns what it is sent."""


@dataclass(frozen=True, slots=True)
class Load:
    """A closed loop of ``clients``, or arrivals at a ``part`` of the best capacity."""

    clients: int = 0  # 0: open loop
    part: float = 0.0  # of the best contender's requests per second; 0: closed loop

    def __str__(self) -> str:
        if self.part:
            return f"{self.part:.0%} load"
        return "1 client" if self.clients == 1 else f"{self.clients} clients"

    @property
    def metrics(self) -> tuple[str, str]:
        """What contenders are compared by: fields of Turn."""
        return ("p50_us", "p99_us") if self.part else ("p50_us", "requests_per_s")


@dataclass(frozen=True, slots=True)
class Turn:
    """One contender under one load in one round."""

    contender: str
    load: Load
    round: int
    answers: int
    errors: Mapping[str, int]  # by status code; also WRONG_ANSWER
    seconds: float
    p50_us: float
    p99_us: float
    requests_per_s: float
    rate_per_s: float | None = None  # offered


@dataclass(slots=True)
class Row:
    """What is known of a contender beside its turns. Seconds count from the upload."""

    batch_sizes: tuple[int, ...]
    versions: Mapping[str, str]
    first_answer_s: float | None = None
    best_speed_s: float | None = None  # None: answers at its best speed from the first on
    memory_mib: float = 0.0  # the most that was seen, proportional set size of all processes
    idle_cores: float = 0.0  # that it uses without requests
    failed: str = ""  # why it takes part no longer


@dataclass(slots=True)
class Case:
    """One model with batching off or dynamic, all contenders."""

    model: str
    batching: str
    environment: Mapping[str, object]
    threads: int
    capacity_per_s: float | None = None  # of the best contender, which the open loops refer to
    rows: dict[str, Row] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)

    @property
    def loads(self) -> list[Load]:
        return list(dict.fromkeys(turn.load for turn in self.turns))


def path_of(folder: Path, model: str, batching: str) -> Path:
    return folder / f"{model}-{batching}.json"


def write_case(case: Case, folder: Path) -> None:
    write_report(path_of(folder, case.model, case.batching), asdict(case))


def read_cases(folder: Path) -> Iterator[Case]:
    for path in sorted(folder.glob("*-*.json")):
        said = json.loads(path.read_text())
        said["rows"] = {
            name: Row(**{**row, "batch_sizes": tuple(row["batch_sizes"])})
            for name, row in said["rows"].items()
        }
        said["turns"] = [Turn(**{**turn, "load": Load(**turn["load"])}) for turn in said["turns"]]
        yield Case(**said)
