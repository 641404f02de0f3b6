"""Run it: ``python -m benchmarks.fleet.sleeping --help``."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.environment import describe
from benchmarks.fleet.simulate.tables import latency_table
from benchmarks.fleet.sleeping.cases import (
    Fleet,
    ideal_per_s,
    mixed_cases,
    real,
    simulated,
    usual_cases,
)
from benchmarks.load.processes import load_generators
from benchmarks.reports import cases_parser, write_report
from tests.child_processes import kill_children_at_exit

ONE_BY_ONE = {1: 50_000.0}
MIXES = ((10.0, 10.0, 1.0) * 2, (1.0, 1.0, 10.0) * 2)
FLEETS = {
    **{str(count): Fleet((1.0,) * count) for count in (1, 3, 6)},
    "two-fast": Fleet(MIXES[0], is_weighted=True),
    "four-fast": Fleet(MIXES[1], is_weighted=True),
    "two-fast-unweighted": Fleet(MIXES[0]),
    "four-fast-unweighted": Fleet(MIXES[1]),
}


def main() -> None:
    options = _options()
    kill_children_at_exit()
    report: dict[str, Any] = {"environment": describe("grpcio"), "cases": []}
    with (
        tempfile.TemporaryDirectory(prefix="braid-sleeping-") as folder,
        load_generators(1) as load,
    ):
        for name in options.cases:
            fleet = FLEETS[name]
            is_mixed = len(set(fleet.slowness)) > 1
            table = ONE_BY_ONE if is_mixed and not options.batches else latency_table("resnet50")
            cases = (mixed_cases if is_mixed else usual_cases)(fleet, table)
            way_s, results = real(fleet, table, cases, Path(folder) / name, load)
            for case, result in zip(cases, results, strict=True):
                report["cases"].append(
                    {
                        "fleet": name,
                        "case": case.name,
                        "ideal_per_s": ideal_per_s(fleet, table),
                        "slow_batch_ms": table[max(table)] * max(fleet.slowness) / 1e3,
                        "way_ms": 1e3 * way_s,
                        "real": asdict(result),
                        "simulated": asdict(simulated(fleet, table, case, way_s)),
                    }
                )
                print(_row(report["cases"][-1]), flush=True)
    print(table_of(report["cases"]))
    write_report(options.json, report)


def table_of(cases: list[dict[str, Any]]) -> str:
    head = [
        "| fleet | load | answers a second: real, simulated, of the ideal | p50, ms | p99, ms | "
        "p99 of the slowest node over its largest batch |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *map(_row, cases)])


def _row(case: dict[str, Any]) -> str:
    real, simulated = case["real"], case["simulated"]

    def pair(name: str) -> str:
        off = simulated[name] / real[name] - 1
        return f"{real[name]:.0f}, {simulated[name]:.0f} ({off:+.0%})"

    slow = [side["slow_p99_ms"] / case["slow_batch_ms"] for side in (real, simulated)]
    return (
        f"| {case['fleet']} | {case['case']} | {pair('per_s')}, "
        f"{real['per_s'] / case['ideal_per_s']:.2f} | {pair('p50_ms')} | {pair('p99_ms')} | "
        f"{slow[0]:.1f}, {slow[1]:.1f} |"
    )


def _options() -> argparse.Namespace:
    parser = cases_parser("benchmarks.fleet.sleeping", FLEETS, is_all_usual=True)
    parser.add_argument("--batches", action="store_true", help="mixed fleets form batches, too")
    return parser.parse_args()


if __name__ == "__main__":
    main()
