"""From turns to cells: medians over the rounds, who is first, how far behind the others are.

A *comparison* is one metric of one load of a case: p50 and requests/s of closed loops, p50 and p99
of open loops. A contender with a failed or wrong answer under a load takes no place in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.peers.models import IDENTITY
from benchmarks.peers.records import ECHO, Case, Load

BRAID = "braid"
THIRTY_LINES = "thirty_lines_ort"
MORE_IS_BETTER = ("requests_per_s",)
METRICS = ("p50_us", "p99_us", "requests_per_s")


@dataclass(frozen=True, slots=True)
class Cell:
    """One contender under one load: medians over its rounds."""

    p50_us: float
    p99_us: float
    requests_per_s: float
    errors: int
    rounds: int

    def value(self, metric: str) -> float:
        """The metric; not a number if a request failed."""
        return math.nan if self.errors else float(getattr(self, metric))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Contenders by one metric: 1 is the best, 0.9 is behind it by a tenth."""

    case: Case
    load: Load
    metric: str
    standing: Mapping[str, float]

    @property
    def winner(self) -> str:
        return max(self.standing, key=lambda name: self.standing[name])

    def __str__(self) -> str:
        what = {"p50_us": "p50", "p99_us": "p99", "requests_per_s": "requests/s"}[self.metric]
        return f"{self.case.model}, batching {self.case.batching}, {self.load}, {what}"


def cells_of(case: Case, load: Load) -> dict[str, Cell]:
    cells = {}
    for name in case.rows:
        turns = [t for t in case.turns if t.contender == name and t.load == load]
        if turns:
            medians = {m: median(getattr(turn, m) for turn in turns) for m in METRICS}
            errors = sum(sum(turn.errors.values()) for turn in turns)
            cells[name] = Cell(**medians, errors=errors, rounds=len(turns))
    return cells


def best_value(cells: Mapping[str, Cell], metric: str) -> float:
    """The best of all; not a number without any."""
    values = [v for cell in cells.values() if not math.isnan(v := cell.value(metric))]
    if not values:
        return math.nan
    return max(values) if metric in MORE_IS_BETTER else min(values)


def compare(case: Case) -> list[Comparison]:
    """Every load and metric of ``case``; the echo, which is no peer, is left out."""
    comparisons = []
    for load in case.loads:
        cells = {name: cell for name, cell in cells_of(case, load).items() if name != ECHO}
        for metric in load.metrics:
            best = best_value(cells, metric)
            standing = {
                name: value / best if metric in MORE_IS_BETTER else best / value
                for name, cell in cells.items()
                if not math.isnan(value := cell.value(metric))
            }
            if standing:
                comparisons.append(Comparison(case, load, metric, standing))
    return comparisons


@dataclass(frozen=True, slots=True)
class Tally:
    """How often a contender is first, and where it is furthest behind."""

    first: int
    of: int
    worst: float
    worst_at: str

    def __str__(self) -> str:
        share = f" ({self.first / self.of:.0%})" if self.of else ""
        return f"{self.first} of {self.of}{share}, worst {self.worst:.2f} ({self.worst_at})"


def tally(
    comparisons: Sequence[Comparison], name: str = BRAID, against: str | None = None
) -> Tally:
    """Where ``name`` stands in ``comparisons``: to the best, or to one contender.

    A comparison in which it takes no place for a failed answer counts as lost, with 0.
    """
    ratios = {}
    for comparison in comparisons:
        other = 1.0 if against is None else comparison.standing.get(against)
        if other is not None:
            ratios[str(comparison)] = comparison.standing.get(name, 0.0) / other
    if not ratios:
        return Tally(0, 0, math.nan, "nothing compared")
    worst_at = min(ratios, key=lambda at: ratios[at])
    first = sum(ratio >= 1.0 for ratio in ratios.values())
    return Tally(first, len(ratios), ratios[worst_at], worst_at)


def real(cases: Sequence[Case]) -> list[Case]:
    """Cases of models that compute something."""
    return [case for case in cases if case.model != IDENTITY]
