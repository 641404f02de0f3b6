"""What is known of each network of the zoo, in a file that grows while a run goes on."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.reports import write_report
from benchmarks.zoo.contender import OWN, PLAIN, SEQUENTIAL
from benchmarks.zoo.engines import TOLERANCES, Timed
from benchmarks.zoo.feeds import FP32
from benchmarks.zoo.serving import Served
from braid.core.runtimes import RUNTIMES


@dataclass(slots=True)
class Record:
    """One network in one type of numbers."""

    name: str
    family: str
    type: str = FP32
    exported: str = ""  # by which exporter
    not_exported: str = ""  # why there is no file
    failures: dict[str, str] = field(default_factory=dict)  # way to export -> why it failed
    imports: dict[str, str] = field(default_factory=dict)  # form of the file -> outcome
    timed: dict[str, Timed] = field(default_factory=dict)  # by batch size
    served: Served | None = None
    least_ms: float | None = None  # bound of the units at one row; None: not measured
    failed: dict[str, str] = field(default_factory=dict)  # phase -> why it did not end

    @property
    def key(self) -> str:
        return self.name if self.type == FP32 else f"{self.name}_{self.type}"

    def of_rows(self, rows: int) -> Timed | None:
        return self.timed.get(str(rows))

    @property
    def share_of_bound(self) -> float:
        """The bound over the best own plan; NaN: not known."""
        timed = self.of_rows(1)
        if self.least_ms is None or timed is None:
            return math.nan
        candidates = timed.plan.get("candidates", {})
        own = [ms for name, ms in candidates.items() if name not in RUNTIMES]
        own += [timed.ms[name] for name in (SEQUENTIAL, PLAIN) if name in timed.ms]
        return self.least_ms / min(own) if own else math.nan

    @property
    def wrong(self) -> dict[str, float]:
        """Errors of Braid's answers that are larger than allowed, by batch size."""
        allowed = TOLERANCES[self.type]
        return {
            rows: error
            for rows, timed in self.timed.items()
            for name, error in timed.errors.items()
            if name in OWN and not error <= allowed
        }


def read_records(file: Path | None) -> dict[str, Record]:
    """Return the records of an earlier run by key; none without its file."""
    if file is None or not file.exists():
        return {}
    records = {}
    for document in json.loads(file.read_text())["networks"].values():
        document["timed"] = {rows: Timed(**timed) for rows, timed in document["timed"].items()}
        served = document["served"]
        document["served"] = None if served is None else Served(**served)
        record = Record(**document)
        records[record.key] = record
    return records


def write_records(
    file: Path | None, environment: Mapping[str, object], records: Mapping[str, Record]
) -> None:
    networks = {key: asdict(record) for key, record in records.items()}
    write_report(file, {"benchmark": "zoo", "environment": environment, "networks": networks})
