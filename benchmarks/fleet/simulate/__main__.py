"""Run it: ``python -m benchmarks.fleet.simulate --help``."""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.environment import describe
from benchmarks.fleet.simulate import tables
from benchmarks.fleet.simulate.load import OK
from benchmarks.fleet.simulate.pictures import draw
from benchmarks.fleet.simulate.studies import STUDIES, Point, Setup
from benchmarks.reports import cases_parser, write_report


def main() -> None:
    options = _options()
    batch_us = tables.latency_table(options.network)
    report: dict[str, Any] = {
        "environment": describe("matplotlib"),
        "network": options.network,
        "batch_us": batch_us,
    }
    points: list[Point] = []
    print(HEAD)
    with ProcessPoolExecutor(options.processes) as pool:
        for new_points in pool.map(
            partial(study, setup=Setup(batch_us, options.requests, options.most)), options.cases
        ):
            points += new_points
            print(*map(row, new_points), sep="\n", flush=True)
    report["points"] = [point.to_json() for point in points]
    write_report(options.json, report)
    if options.pictures is not None:
        draw(points, options.pictures)


def study(name: str, setup: Setup) -> list[Point]:
    return list(STUDIES[name](setup))


HEAD = (
    "| study | curve | at | answers a second, of the ideal | p50, ms | p99, ms | failed | "
    "utilisation of nodes, least to most |\n|---|---|---|---|---|---|---|---|"
)


def row(point: Point) -> str:
    report = point.report
    failed = report.sent - report.outcomes[OK]
    used = [node.utilisation for node in report.nodes]
    return (
        f"| {point.study} | {point.curve} | {point.x:g} | "
        f"{report.answers_per_s:.0f}, {report.answers_per_s / report.ideal_per_s:.2f} | "
        f"{report.p50_ms:.0f} | {report.p99_ms:.0f} | {failed} of {report.sent} | "
        f"{min(used):.2f} to {max(used):.2f} |"
    )


def _options() -> argparse.Namespace:
    parser = cases_parser("benchmarks.fleet.simulate", STUDIES, is_all_usual=True)
    parser.add_argument("--network", default="resnet50", help="whose latency table all nodes have")
    parser.add_argument("--pictures", type=Path, help="draw the curves into this folder (SVG)")
    parser.add_argument("--requests", type=int, default=5000, help="of one case")
    parser.add_argument("--most", type=int, default=100, help="nodes of the largest fleet")
    parser.add_argument("--processes", type=int, default=2, help="studies at once")
    return parser.parse_args()


if __name__ == "__main__":
    main()
