"""Results of ``benchmarks.engine``: one record a case, ratios, tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles

from benchmarks.reports import write_report
from braid.core.runtimes import RUNTIMES
from braid.core.schedule import SEQUENTIAL

PORTFOLIO, OWN_BEST = "braid portfolio", "braid best own"
MULTI_BRANCH = ("googlenet", "randwire", "randwire_small", "nasnet_large", "nasnet_mobile",
                "inception_v3")  # fmt: skip


@dataclass(slots=True)
class Case:
    """One network at one batch size. Latencies in milliseconds."""

    network: str
    batch: int
    portfolio: str  # the contender it chose
    own: str  # its best plan without other runtimes
    errors: Mapping[str, float]  # of the plans' outputs, relative to the largest element
    samples_ms: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def median_ms(self, contender: str) -> float:
        """Median over all turns; not a number where it did not run."""
        samples = self.samples_ms.get(_braid_name(self, contender), [])
        return median(samples) if samples else math.nan

    @property
    def winner(self) -> str:
        return min(self.samples_ms, key=self.median_ms)


def _braid_name(case: Case, contender: str) -> str:
    if contender == OWN_BEST:
        return f"braid {case.own}"
    if contender == PORTFOLIO and case.portfolio not in RUNTIMES:
        return f"braid {case.portfolio}"
    return contender


def geometric_mean(ratios: Sequence[float]) -> float:
    """Of those that are numbers; not a number without any."""
    logarithms = [math.log(ratio) for ratio in ratios if not math.isnan(ratio)]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else math.nan


def ratios(cases: Sequence[Case]) -> dict[str, dict[str, float]]:
    """By what factor Braid is faster, by comparison and network."""

    def over(case: Case, other: float, ours: str = PORTFOLIO) -> float:
        return other / case.median_ms(ours)

    def onnxruntime(case: Case) -> float:
        modes = [case.median_ms(f"onnxruntime-{mode}") for mode in ("sequential", "parallel")]
        return min((ms for ms in modes if not math.isnan(ms)), default=math.nan)

    def openvino(case: Case) -> float:
        return case.median_ms("openvino")

    def rivals(case: Case) -> float:
        times = [ms for ms in (onnxruntime(case), openvino(case)) if not math.isnan(ms)]
        return min(times, default=math.nan)

    sequential = f"braid {SEQUENTIAL}"
    by_rival = {
        "portfolio / the better of both": {c.network: over(c, rivals(c)) for c in cases},
        "best own / the better of both": {c.network: over(c, rivals(c), OWN_BEST) for c in cases},
        "portfolio / openvino": {c.network: over(c, openvino(c)) for c in cases},
        "portfolio / onnxruntime": {c.network: over(c, onnxruntime(c)) for c in cases},
        "best own / onnxruntime": {c.network: over(c, onnxruntime(c), OWN_BEST) for c in cases},
        "portfolio / torch eager": {c.network: over(c, c.median_ms("torch-eager")) for c in cases},
        "portfolio / torch.compile": {
            c.network: over(c, c.median_ms("torch-compile")) for c in cases
        },
        "best own / own sequential": {
            c.network: over(c, c.median_ms(sequential), OWN_BEST) for c in cases
        },
        "the same, multi-branch only": {
            c.network: over(c, c.median_ms(sequential), OWN_BEST)
            for c in cases
            if c.network in MULTI_BRANCH
        },
    }
    return {
        name: values | {"geometric mean": geometric_mean([*values.values()])}
        for name, values in by_rival.items()
    }


def print_case(case: Case) -> None:
    print(f"\n{case.network}, batch {case.batch}")
    best = case.median_ms(case.winner)
    for name in sorted(case.samples_ms, key=case.median_ms):
        samples = case.samples_ms[name]
        lower, _, upper = quantiles(samples * 2, n=4, method="inclusive")
        ms, scatter = case.median_ms(name), f"{lower:.2f} to {upper:.2f}, {len(samples)} runs"
        print(f"  {name:56} {ms:9.2f} ms {ms / best:6.2f}x  ({scatter})")
    print(f"  winner: {case.winner}; the portfolio serves: {case.portfolio}; best own: {case.own}")


def print_ratios(cases: Sequence[Case]) -> None:
    for batch in sorted({case.batch for case in cases}):
        print(f"\nbatch {batch}: how many times as fast")
        for name, values in ratios([case for case in cases if case.batch == batch]).items():
            print(f"  {name:28}", *(f"{network} {value:.2f}" for network, value in values.items()))


def write(cases: Sequence[Case], environment: object, folder: Path) -> None:
    batches = sorted({case.batch for case in cases})
    document = {
        "environment": environment,
        "cases": [
            {
                **asdict(case),
                "median_ms": {name: case.median_ms(name) for name in case.samples_ms},
                "portfolio_ms": case.median_ms(PORTFOLIO),
                "best_own_ms": case.median_ms(OWN_BEST),
                "winner": case.winner,
            }
            for case in cases
        ],
        "ratios": {batch: ratios([c for c in cases if c.batch == batch]) for batch in batches},
    }
    write_report(folder / "engine.json", document)
