"""Counts of a run that do not depend on the machine's speed, beside those that are stored.

More refused candidates, fallbacks or refused imports than are stored, or an engine less, is a
fault. Ratios have a wide margin: they only show what became several times slower.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.reports import replace_text
from benchmarks.zoo.contender import SERVES
from benchmarks.zoo.importing import verdict
from benchmarks.zoo.plans import engine_names
from benchmarks.zoo.records import Record
from benchmarks.zoo.report import geometric_mean

STORED = Path(__file__).with_name("counts.json")

MISSING = "No module named 'transformers'"
"""Why a network is left out that cannot be had here."""

LEAST_SPEED, LEAST_MEAN = 0.2, 0.4
"""Speed beside the better runtime of one network, and geometric mean of all."""


@dataclass(frozen=True, slots=True)
class Counts:
    """One network at batch 1."""

    imports: Mapping[str, str]  # form of the file -> first word of its outcome
    refused: Sequence[str]  # engines, or own plans, of which candidates were refused
    fallbacks: int
    engines: Sequence[str]  # that could have served

    @staticmethod
    def of(record: Record) -> Counts:
        timed = record.of_rows(1)
        plan = timed.plan if timed is not None else {}
        return Counts(
            imports={form: verdict(outcome) for form, outcome in record.imports.items()},
            refused=sorted(engine_names(plan.get("refused", {}))),
            fallbacks=len(plan.get("fallbacks", ())),
            engines=timed.engines if timed is not None else [],
        )


def read_counts(file: Path) -> dict[str, Counts]:
    return {name: Counts(**counts) for name, counts in json.loads(file.read_text()).items()}


def write_counts(file: Path, records: Sequence[Record]) -> None:
    document: dict[str, Any] = {record.key: asdict(Counts.of(record)) for record in records}
    replace_text(file, json.dumps(document, indent=1) + "\n")


def worse(records: Sequence[Record], stored: Mapping[str, Counts]) -> list[str]:
    """Return a line for everything that is worse than stored, or much slower than a runtime."""
    lines, speeds = [], []
    for record in records:
        if record.not_exported:
            if MISSING not in record.not_exported:
                lines.append(f"{record.key} is not exported: {record.not_exported}")
            continue
        now, before = Counts.of(record), stored.get(record.key)
        for form, outcome in now.imports.items():
            if before and outcome != before.imports.get(form, outcome):
                lines.append(f"{record.key} as {form}: {outcome}, stored {before.imports[form]}")
        if before and (more := set(now.refused) - set(before.refused)):
            lines.append(f"{record.key}: candidates of {', '.join(sorted(more))} are refused")
        if before and now.fallbacks > before.fallbacks:
            lines.append(f"{record.key}: {now.fallbacks} fallbacks, stored {before.fallbacks}")
        if before and (less := set(before.engines) - set(now.engines)):
            lines.append(f"{record.key}: {', '.join(sorted(less))} could not serve")
        timed = record.of_rows(1)
        speed = timed.speed(SERVES) if timed is not None else math.nan
        speeds.append(speed)
        if speed < LEAST_SPEED:
            lines.append(f"{record.key}: speed {speed:.2f}, at least {LEAST_SPEED} is asked")
    if (mean := geometric_mean(speeds)) < LEAST_MEAN:
        lines.append(f"geometric mean {mean:.2f}, at least {LEAST_MEAN} is asked")
    return lines
