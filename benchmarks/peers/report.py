"""The comparison as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.peers.models import IDENTITY, NAMES
from benchmarks.peers.records import BATCHINGS, ECHO, Case, Load
from benchmarks.peers.results import (
    BRAID,
    METRICS,
    THIRTY_LINES,
    Cell,
    best_value,
    cells_of,
    compare,
    real,
    tally,
)

_LEGEND = """\
Cells: p50 ms / p99 ms / requests per second from the client, medians over the rounds; the best of a
column in bold. *n clients*: closed loop. *n % load*: Poisson arrivals at that part of the best
server's capacity. *Memory*: proportional set size of all processes. *First answer* counts from
the upload, or from the start of a server that loads its model then; *best speed* where it comes
later."""


def write_report(cases: Sequence[Case], folder: Path) -> str:
    ordered = sorted(cases, key=_rank)
    text = "\n".join([*_summary(ordered), "", *_tables(ordered)]) + "\n"
    (folder / "peers.md").write_text(text)
    return text


def _rank(case: Case) -> tuple[int, str, int]:
    rank = NAMES.index(case.model) if case.model in NAMES else len(NAMES)
    return rank, case.model, BATCHINGS.index(case.batching)


def _summary(cases: Sequence[Case]) -> Iterator[str]:
    comparisons = [comparison for case in real(cases) for comparison in compare(case)]
    closed = [comparison for comparison in comparisons if not comparison.load.part]
    arrivals = [comparison for comparison in comparisons if comparison.load.part]
    yield from ("| Braid, real models | first in | ", "|---|---|")
    yield f"| p50 and requests/s, closed loops | {tally(closed)} |"
    yield f"| p50 and p99, open loops | {tally(arrivals)} |"
    yield f"| closed loops, against {THIRTY_LINES} | {tally(closed, against=THIRTY_LINES)} |"
    yield f"| open loops, against {THIRTY_LINES} | {tally(arrivals, against=THIRTY_LINES)} |"
    for case in cases:
        if case.model == IDENTITY:
            cells = cells_of(case, Load(clients=1))
            if BRAID in cells and ECHO in cells:
                ratio = cells[BRAID].p50_us / cells[ECHO].p50_us
                yield f"| identity, batching {case.batching}: p50 to the bare echo | {ratio:.2f}x |"
    lost = [comparison for comparison in comparisons if comparison.winner != BRAID]
    yield from ("", "Where Braid is not first:", "", "| | first | Braid |", "|---|---|---|")
    for comparison in sorted(lost, key=lambda one: one.standing.get(BRAID, 0.0)):
        yield f"| {comparison} | {comparison.winner} | {comparison.standing.get(BRAID, 0.0):.2f} |"


def _tables(cases: Sequence[Case]) -> Iterator[str]:
    yield from (_LEGEND, "")
    for case in cases:
        facts = case.environment
        rounds = max((turn.round for turn in case.turns), default=-1) + 1
        yield from (f"### {case.model}, batching {case.batching}", "")
        yield (
            f"{facts['cpu']}, {case.threads} threads, commit {str(facts['commit'])[:7]}, "
            f"{str(facts['date'])[:10]}, {rounds} rounds"
        )
        yield ""
        yield from _table(case)
        yield ""


def _table(case: Case) -> Iterator[str]:
    columns = [*map(str, case.loads), "memory MiB", "first answer s", "best speed s"]
    yield f"| server | {' | '.join(columns)} |"
    yield "|---" * (len(columns) + 1) + "|"
    for name, row in case.rows.items():
        texts = [_cell_text(case, load, name) for load in case.loads]
        first = "–" if row.first_answer_s is None else f"{row.first_answer_s:.1f}"
        best = first if row.best_speed_s is None else f"{row.best_speed_s:.1f}"
        yield f"| {name} | {' | '.join(texts)} | {row.memory_mib:.0f} | {first} | {best} |"
    for name, row in case.rows.items():
        if row.failed:
            yield from ("", f"{name} failed: {row.failed.splitlines()[0]}")


def _cell_text(case: Case, load: Load, name: str) -> str:
    cells = cells_of(case, load)
    if name not in cells:
        return "–"
    cell = cells[name]
    if cell.errors:
        return f"{cell.errors} errors"
    peers = {other: text for other, text in cells.items() if other != ECHO}
    return " / ".join(_number(cell, metric, best_value(peers, metric)) for metric in METRICS)


def _number(cell: Cell, metric: str, best: float) -> str:
    value = cell.value(metric)
    scaled = value / 1000 if metric.endswith("_us") else value
    text = f"{scaled:.0f}" if scaled >= 100 else f"{scaled:.3g}"
    return f"**{text}**" if value == best else text
