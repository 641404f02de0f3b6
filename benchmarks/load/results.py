"""From samples to rows and ratios, and those as text."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.load.records import Endpoint, Samples

BASE = "echo"
"""The endpoint that the others are compared with."""

COLUMNS = ("p50_us", "p99_us", "p999_us", "requests_per_s")


@dataclass(frozen=True, slots=True)
class Load:
    """One pattern of load."""

    clients: int
    rate_per_s: float | None = None  # None: closed loop

    def __str__(self) -> str:
        pattern = f"{self.rate_per_s:.0f}/s Poisson" if self.rate_per_s else "closed"
        return f"{self.clients} client{'s' if self.clients > 1 else ''}, {pattern}"


@dataclass(frozen=True, slots=True)
class Turn:
    """One endpoint under one load in one round."""

    endpoint: str
    load: Load
    round: int
    requests: int
    errors: Mapping[str, int]
    seconds: float
    p50_us: float
    p99_us: float
    p999_us: float
    requests_per_s: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One endpoint under one load: medians over the rounds, and their ratios to the echo's."""

    load: Load
    endpoint: str
    medians: Mapping[str, float]
    ratio: Mapping[str, float]  # empty where the echo was not measured
    p50_ratio_by_round: Sequence[float]
    errors: int


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least ``percent`` % of ``values`` do not exceed; NaN if empty."""
    if not values:
        return float("nan")
    rank = -(-len(values) * percent // 100)
    return sorted(values)[max(0, int(rank) - 1)]


def summarise(endpoint: Endpoint, load: Load, round_number: int, samples: Samples) -> Turn:
    """Reduce what the clients saw to one row."""
    requests = len(samples.latency_us)
    return Turn(
        endpoint=endpoint.name,
        load=load,
        round=round_number,
        requests=requests,
        errors=dict(samples.errors),
        seconds=samples.seconds,
        p50_us=percentile(samples.latency_us, 50),
        p99_us=percentile(samples.latency_us, 99),
        p999_us=percentile(samples.latency_us, 99.9),
        requests_per_s=requests / samples.seconds,
    )


def compare(turns: Sequence[Turn]) -> list[Comparison]:
    """One row for each load and endpoint, in the order of the turns."""
    loads = dict.fromkeys(turn.load for turn in turns)
    names = dict.fromkeys(turn.endpoint for turn in turns)
    return [
        _compare(load, name, rounds, _rounds(turns, load, BASE))
        for load in loads
        for name in names
        if (rounds := _rounds(turns, load, name))
    ]


def _rounds(turns: Sequence[Turn], load: Load, name: str) -> list[Turn]:
    of = [turn for turn in turns if (turn.load, turn.endpoint) == (load, name)]
    return sorted(of, key=lambda turn: turn.round)


def _compare(load: Load, name: str, rounds: list[Turn], base: list[Turn]) -> Comparison:
    medians = {c: statistics.median(getattr(turn, c) for turn in rounds) for c in COLUMNS}
    echo = {c: statistics.median(getattr(turn, c) for turn in base) for c in COLUMNS if base}
    return Comparison(
        load=load,
        endpoint=name,
        medians=medians,
        ratio={column: medians[column] / value for column, value in echo.items()},
        p50_ratio_by_round=[
            mine.p50_us / other.p50_us for mine, other in zip(rounds, base, strict=bool(base))
        ],
        errors=sum(sum(turn.errors.values()) for turn in rounds),
    )


def progress(turn: Turn) -> str:
    text = (
        f"{turn.load}, round {turn.round + 1}: {turn.endpoint:12} p50 {turn.p50_us:7.0f} us"
        f"  p99 {turn.p99_us:7.0f} us  {turn.requests_per_s:6.0f} /s"
    )
    return text + (f"  ERRORS {dict(turn.errors)}" if turn.errors else "")


def table(comparisons: Sequence[Comparison]) -> str:
    header = f"{'load':24} {'endpoint':13} p50 us  p99 us p99.9 us  requests/s  p50/echo  by round"
    lines = [header]
    for row in comparisons:
        by_round = " ".join(f"{ratio:.2f}" for ratio in row.p50_ratio_by_round)
        m = row.medians
        ratio = f"{row.ratio['p50_us']:8.2f}" if row.ratio else " " * 8
        lines.append(
            f"{row.load!s:24} {row.endpoint:13} {m['p50_us']:6.0f}  {m['p99_us']:6.0f}"
            f"   {m['p999_us']:6.0f}  {m['requests_per_s']:10.0f}  {ratio}  {by_round}"
            + (f"  {row.errors} errors" if row.errors else "")
        )
    return "\n".join(lines)
