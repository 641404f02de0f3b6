"""Tables of a zoo: ratios by family, the worst, who refuses what, and which engine runs what.

A speed is the time of the better runtime over Braid's: above 1 Braid is the faster.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks.peers.results import BRAID
from benchmarks.zoo.contender import PLAIN, SEQUENTIAL, SERVES
from benchmarks.zoo.engines import Timed
from benchmarks.zoo.importing import PARTS, verdict
from benchmarks.zoo.plans import engine_names
from benchmarks.zoo.records import Record

WORST = 10
_SHOWN = (SERVES, PLAIN)  # what the worst are chosen by

_COLUMNS: Mapping[str, Callable[[Timed], float]] = {
    "sequential": lambda timed: timed.speed(SEQUENTIAL, PLAIN),
    "own best": lambda timed: timed.candidate_speed(mixed=False),
    "mixed": lambda timed: timed.candidate_speed(mixed=True),
    "serves": lambda timed: timed.speed(SERVES),
}


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of the values that are known; NaN if none is."""
    known = [value for value in values if math.isfinite(value) and value > 0]
    return math.exp(sum(map(math.log, known)) / len(known)) if known else math.nan


def text(records: Sequence[Record], batches: Sequence[int]) -> str:
    lines = [line for rows in batches for line in _batch(records, rows)]
    return "\n".join([*lines, *_served(records), *_engines(records), *_refusals(records)])


def _batch(records: Sequence[Record], rows: int) -> Iterator[str]:
    timed = [(record, one) for record in records if (one := record.of_rows(rows)) is not None]
    if not timed:
        return
    names = "".join(f"{name:>12}" for name in _COLUMNS)
    yield f"batch {rows}: speed beside the better runtime, geometric means"
    yield f"  {'family':24}{'networks':>9}{names}{'of bound':>12}{'worst':>8}"
    families = dict.fromkeys(record.family for record, _ in timed)
    for family in (*families, "all"):
        same = [(record, one) for record, one in timed if family in ("all", record.family)]
        means = [geometric_mean([of(one) for _, one in same]) for of in _COLUMNS.values()]
        bound = geometric_mean([record.share_of_bound for record, _ in same]) if rows == 1 else None
        worst = min((_known(one.speed(*_SHOWN)) for _, one in same), default=math.nan)
        cells = "".join(f"{_number(value):>12}" for value in (*means, bound))
        yield f"  {family:24}{len(same):9}{cells}{_number(worst):>8}"
    yield from _worst(timed)


def _worst(timed: Sequence[tuple[Record, Timed]]) -> Iterator[str]:
    ordered = sorted(timed, key=lambda pair: _known(pair[1].speed(*_SHOWN)))
    yield f"  the worst {min(WORST, len(ordered))} of what serves, or of the plain plan, ms"
    for record, one in ordered[:WORST]:
        times = "  ".join(f"{name} {ms:.2f}" for name, ms in one.ms.items())
        kinds = sorted(one.plan.get("kinds_ms", {}).items(), key=lambda kind: -kind[1])[:4]
        spent = ", ".join(f"{kind} {ms:.2f}" for kind, ms in kinds)
        yield (
            f"    {record.key:26}{_number(one.speed(*_SHOWN)):>6}  {times}"
            f"  ({one.plan.get('planner') or 'no plan'}; own units: {spent or 'not measured'})"
        )


def _served(records: Sequence[Record]) -> Iterator[str]:
    served = [(record, record.served) for record in records if record.served is not None]
    if not served:
        return
    yield "from the client, one row, p50 in ms; speed beside the better thirty lines"
    for record, one in sorted(served, key=lambda pair: _known(pair[1].speed)):
        times = "  ".join(f"{name} {ms:.2f}" for name, ms in one.p50_ms.items())
        bad = "".join(f"  {name}: {count} ERRORS" for name, count in one.errors.items() if count)
        bad += "".join(f"  {name} failed" for name in one.failed)
        yield f"    {record.key:26}{_number(one.speed):>6}  {times}{bad}"
    mean = geometric_mean([one.speed for _, one in served if BRAID not in one.failed])
    yield f"  {len(served)} networks, geometric mean {_number(mean)}"


def _engines(records: Sequence[Record]) -> Iterator[str]:
    plans = [timed.plan for record in records for timed in record.timed.values() if timed.plan]
    if not plans:
        return
    served = Counter("+".join(sorted(plan["units"])) or "no plan" for plan in plans)
    refused = Counter(name for plan in plans for name in engine_names(plan["refused"]))
    yield f"what serves: {_counted(served)}"
    yield (
        f"candidates refused: {_counted(refused)}; fallbacks: "
        f"{sum(len(plan['fallbacks']) for plan in plans)}"
    )


def _refusals(records: Sequence[Record]) -> Iterator[str]:
    outcomes = Counter(
        f"{form} {verdict(outcome)}"
        for record in records
        for form, outcome in record.imports.items()
    )
    if outcomes:
        yield f"imports: {_counted(outcomes)}"
    for record in records:
        if record.not_exported:
            yield f"  {record.key} is not exported: {record.not_exported}"
        for form, outcome in record.imports.items():
            if verdict(outcome) != PARTS:
                yield f"  {record.key} as {form} is {outcome}"
        for rows, timed in record.timed.items():
            for name, why in timed.refused.items():
                yield f"  {record.key}, batch {rows}: {name} does not run: {why}"
            for name, error in timed.errors.items():
                if not error <= 1e-3:
                    yield f"  {record.key}, batch {rows}: {name} errs by {error:.2g}"
        for phase, why in record.failed.items():
            yield f"  {record.key}: {phase} did not end: {why}"


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "none"


def _known(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def _number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.2f}"
