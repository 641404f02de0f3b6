"""Tables of what was measured: medians over the rounds, and Braid beside the best of the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.peers.results import BRAID
from benchmarks.shapes.phases import Churn, First, Turn

FLAT = 1.1
"""Growth of memory from a quarter of the shapes to the end that passes as none."""


@dataclass(slots=True)
class Measured:
    """One model: everything that was measured, and who took no part."""

    model: str
    is_stress: bool = False  # memory has to be flat
    left_out: dict[str, str] = field(default_factory=dict)  # contender -> reason
    ended: dict[str, str] = field(default_factory=dict)  # the same, of those that had started
    start_s: dict[str, float] = field(default_factory=dict)
    first: list[First] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    churn: list[Churn] = field(default_factory=list)

    @property
    def is_bad(self) -> bool:
        """Whether a request failed or was answered wrongly, or a server that matters ended."""
        errors = [
            *(first.errors for first in self.first),
            *(turn.errors for turn in self.turns),
            *(row.errors for row in self.churn),
            *(row.neighbour_errors for row in self.churn),
        ]
        grown = self.is_stress and any(row.growth > FLAT for row in self.churn)
        return bool(grown or any(errors) or self.ended or BRAID in self.left_out)


@dataclass(frozen=True, slots=True)
class Cell:
    """A contender under a load: medians over the rounds."""

    distribution: str
    clients: int
    contender: str
    p50_us: float
    p99_us: float
    requests_per_s: float
    errors: int


def cells(turns: Sequence[Turn]) -> list[Cell]:
    rounds: dict[tuple[str, int, str], list[Turn]] = {}
    for turn in turns:
        rounds.setdefault((turn.distribution, turn.clients, turn.contender), []).append(turn)
    return [
        Cell(
            distribution=distribution,
            clients=clients,
            contender=contender,
            p50_us=median(turn.p50_us for turn in same),
            p99_us=median(turn.p99_us for turn in same),
            requests_per_s=median(turn.requests_per_s for turn in same),
            errors=sum(sum(turn.errors.values()) for turn in same),
        )
        for (distribution, clients, contender), same in rounds.items()
    ]


def text(measured: Measured) -> str:
    return "\n".join([measured.model, *_lines(measured)])


def _lines(measured: Measured) -> Iterator[str]:
    for contender, reason in (measured.left_out | measured.ended).items():
        lines = reason.strip().splitlines()
        yield f"  {contender} is left out: {' ... '.join(dict.fromkeys([lines[0], lines[-1]]))}"
    if measured.first:
        yield f"  {'first request of a shape':34} first ms  repeated ms  ratio  p90  worst  shapes"
    for first in measured.first:
        yield (
            f"    {first.contender:32} {first.first_us / 1e3:8.2f}  {first.repeated_us / 1e3:11.2f}"
            f"  {first.ratio:5.2f}  {first.ratio_p90:3.1f}  {first.ratio_worst:5.1f}"
            f"  {first.shapes:6}{_errors(sum(first.errors.values()))}"
        )
    if measured.turns:
        yield f"  {'load':34} p50 ms     p99 ms   requests/s   Braid over the best other"
    for load, same in _by_load(cells(measured.turns)):
        yield f"   {load}"
        others = [cell for cell in same if cell.contender != BRAID]
        for cell in same:
            ratios = _ratios(cell, others) if cell.contender == BRAID and others else ""
            yield (
                f"    {cell.contender:32} {cell.p50_us / 1e3:6.2f}  {cell.p99_us / 1e3:9.2f}"
                f"  {cell.requests_per_s:11.1f}   {ratios}{_errors(cell.errors)}"
            )
    if measured.churn:
        yield (
            f"  {'ever new shapes':34} shapes  memory MiB  growth"
            "  neighbour's p99 ms: alone, beside repeated, beside new shapes"
        )
    for row in measured.churn:
        p99 = ", ".join(f"{us / 1e3:.1f}" for us in row.neighbour_p99_us.values())
        p99 += f" ({row.slowed('alone'):.2f} and {row.slowed('repeated'):.2f} times the others)"
        yield (
            f"    {row.contender:32} {row.answered:6}  {row.memory_mib[0][1]:4.0f}"
            f" -> {row.memory_mib[-1][1]:4.0f}  {row.growth:5.2f}"
            f"  {p99}{_errors(sum(row.errors.values()) + sum(row.neighbour_errors.values()))}"
        )


def _by_load(cells: Sequence[Cell]) -> Iterator[tuple[str, list[Cell]]]:
    for load in dict.fromkeys((cell.distribution, cell.clients) for cell in cells):
        same = [cell for cell in cells if (cell.distribution, cell.clients) == load]
        yield f"{load[0]}, {load[1]} client{'s' if load[1] > 1 else ''}", same


def _ratios(cell: Cell, others: Sequence[Cell]) -> str:
    p50, p99 = (
        getattr(cell, name) / min(getattr(other, name) for other in others)
        for name in ("p50_us", "p99_us")
    )
    rate = cell.requests_per_s / max(other.requests_per_s for other in others)
    return f"p50 {p50:.2f}  p99 {p99:.2f}  requests/s {rate:.2f}"


def _errors(count: int) -> str:
    return f"  {count} ERRORS" if count else ""
