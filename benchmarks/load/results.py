"""From samples to rows and ratios, and those as text."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.load.records import Endpoint, Samples


@dataclass(frozen=True, slots=True)
class Turn:
    """One endpoint under one load in one round."""

    endpoint: str
    clients: int
    round: int
    requests: int
    errors: Mapping[str, int]
    seconds: float
    p50_us: float
    p99_us: float
    requests_per_s: float
    # Medians of what the server reports of itself; None where it reports nothing.
    queue_us: float | None
    compute_us: float | None
    total_us: float | None
    batch_rows: float | None  # mean


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both endpoints under one load: medians over the rounds, and braid's over echo's."""

    clients: int
    echo: Mapping[str, float]
    braid: Mapping[str, float]
    ratio: Mapping[str, float]
    p50_ratio_by_round: Sequence[float]


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least ``percent`` % of ``values`` do not exceed; NaN if empty."""
    if not values:
        return float("nan")
    rank = -(-len(values) * percent // 100)
    return sorted(values)[max(0, int(rank) - 1)]


def summarise(endpoint: Endpoint, clients: int, round_number: int, samples: Samples) -> Turn:
    """Reduce what the clients saw to one row."""

    def middle(values: Sequence[int]) -> float | None:
        return statistics.median(values) if values else None

    requests = len(samples.latency_us)
    return Turn(
        endpoint=endpoint.name,
        clients=clients,
        round=round_number,
        requests=requests,
        errors=samples.errors,
        seconds=samples.seconds,
        p50_us=percentile(samples.latency_us, 50),
        p99_us=percentile(samples.latency_us, 99),
        requests_per_s=requests / samples.seconds,
        queue_us=middle(samples.queue_us),
        compute_us=middle(samples.compute_us),
        total_us=middle(samples.total_us),
        batch_rows=statistics.mean(samples.batch_rows) if samples.batch_rows else None,
    )


def compare(turns: Sequence[Turn], clients: int) -> Comparison:
    """Medians over the rounds and their ratios, for one number of clients."""
    columns = ("p50_us", "p99_us", "requests_per_s")
    of = {
        name: sorted(
            (t for t in turns if t.endpoint == name and t.clients == clients),
            key=lambda turn: turn.round,
        )
        for name in ("echo", "braid")
    }
    medians = {
        name: {column: statistics.median(getattr(t, column) for t in rows) for column in columns}
        for name, rows in of.items()
    }
    return Comparison(
        clients=clients,
        echo=medians["echo"],
        braid=medians["braid"],
        ratio={column: medians["braid"][column] / medians["echo"][column] for column in columns},
        p50_ratio_by_round=[
            b.p50_us / e.p50_us for e, b in zip(of["echo"], of["braid"], strict=True)
        ],
    )


def progress(turn: Turn) -> str:
    """One turn in one line."""
    text = (
        f"{turn.clients:3} clients, round {turn.round + 1}: {turn.endpoint:6}"
        f" p50 {turn.p50_us:7.0f} us  p99 {turn.p99_us:7.0f} us  {turn.requests_per_s:6.0f} /s"
    )
    if turn.total_us is not None and turn.batch_rows is not None:
        text += (
            f"  (server: queue {turn.queue_us:.0f}, compute {turn.compute_us:.0f},"
            f" total {turn.total_us:.0f} us, {turn.batch_rows:.1f} rows a batch)"
        )
    return text + (f"  ERRORS {dict(turn.errors)}" if turn.errors else "")


def table(comparisons: Sequence[Comparison]) -> str:
    """The result for people."""
    lines = ["clients            p50 us            p99 us      requests/s   p50 ratio by round"]
    for each in comparisons:
        rows = (("echo", each.echo), ("braid", each.braid))
        lines += [
            f"{each.clients:7} {name:6} {row['p50_us']:10.0f}  {row['p99_us']:16.0f}"
            f"  {row['requests_per_s']:14.0f}"
            for name, row in rows
        ]
        by_round = " ".join(f"{ratio:.2f}" for ratio in each.p50_ratio_by_round)
        lines.append(
            f"        ratio  {each.ratio['p50_us']:10.2f}  {each.ratio['p99_us']:16.2f}"
            f"  {each.ratio['requests_per_s']:14.2f}   {by_round}"
        )
    return "\n".join(lines)
