"""``braid plan``: schedule an abstract graph with no device at all, to study planners.

    braid plan GRAPH.json --planner ios --max-group-ops 3 --max-groups 8 --json

The format of the graph is described in ``scheduler/abstract.py``.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from braid.scheduler.abstract import AbstractGraph, load_abstract_graph
from braid.scheduler.blocks import searchable
from braid.scheduler.options import PLANNERS, PlannerSettings
from braid.scheduler.planners import Planned, count_schedules, plan
from braid.scheduler.portfolio import candidates
from braid.server.cli.connection import Subparsers
from braid.server.cli.text import say

EXACT = ("ios", "ios-parallel", "lazy-ios")


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("plan", help="schedule an abstract graph, without any device")
    parser.add_argument("graph", type=Path, metavar="GRAPH.json")
    parser.add_argument("--planner", choices=PLANNERS, default="ios")
    parser.add_argument(
        "--max-groups", type=int, default=8, metavar="S", help="groups in a stage; 0 = no limit"
    )
    parser.add_argument(
        "--max-group-ops",
        type=int,
        default=3,
        metavar="R",
        help="operators in a group; 0 = no limit",
    )
    parser.add_argument(
        "--single-root",
        action="store_true",
        help="groups with one source only, as in the code of the IOS authors",
    )
    parser.add_argument(
        "--max-block-ops",
        type=int,
        default=0,
        metavar="N",
        help="split into blocks of at most N operators; 0 = only if the graph is too large",
    )
    parser.add_argument("--streams", type=int, default=8, metavar="N", help="at most 8")
    parser.add_argument("--gap", type=_fraction, default=0.0, help="lazy-ios: e.g. 1%% or 0.01")
    parser.add_argument("--time-budget", type=float, metavar="SECONDS", help="lazy-ios")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    graph = load_abstract_graph(args.graph.read_bytes())
    options = _options(args, graph)
    planned = _plan(graph, options)
    report = {**_report(graph, options, planned), "chosen": planned.planner}
    print(json.dumps(report)) if args.json else _print(graph, report)
    return 0


def _plan(graph: AbstractGraph, options: PlannerSettings) -> Planned:
    """Plan the graph; of the portfolio, return the candidate with the least latency."""
    if options.planner != "portfolio":
        return plan(graph.units, graph.cost, options, graph.facts)
    entered = candidates(graph.units, graph.cost, options, graph.facts)
    best = min(entered, key=lambda planned: graph.cost.plan_latency_us(planned.plan))
    return replace(best, predicted_us=graph.cost.plan_latency_us(best.plan))


def _options(args: argparse.Namespace, graph: AbstractGraph) -> PlannerSettings:
    block_ops = args.max_block_ops or (None if searchable(graph.units) else 40)
    return PlannerSettings(
        args.planner,
        max_group_ops=args.max_group_ops or None,
        max_groups=args.max_groups or None,
        single_root=args.single_root,
        max_block_ops=block_ops,
        max_streams=args.streams,
        gap=args.gap,
        time_budget_s=args.time_budget,
    )


def _fraction(text: str) -> float:
    percent = text.endswith("%")
    return float(text.rstrip("%")) / (100 if percent else 1)


def _report(graph: AbstractGraph, options: PlannerSettings, planned: Planned) -> dict[str, Any]:
    searched = options.planner in EXACT
    counts = asdict(planned.counts)
    counts["schedules"] = count_schedules(graph.units, options) if searched else None
    counts["search_seconds"] = planned.search_seconds
    report: dict[str, Any] = {
        "planner": options.planner,
        "options": options.text,
        "latency_us": planned.predicted_us,
        "sequential_us": sum(graph.cost.latency_us),
    }
    if planned.streams is None:
        report["stages"] = [
            [_ids(graph, group) for group in stage.groups] for stage in planned.stages
        ]
    else:
        report["streams"] = [_ids(graph, stream) for stream in planned.streams.streams]
        report["launch_order"] = _ids(graph, planned.streams.launch_order)
    if planned.gap is not None:
        report["gap"] = planned.gap
    return {**report, "counts": counts, "search_seconds": planned.search_seconds}


def _ids(graph: AbstractGraph, units: Sequence[int]) -> list[int]:
    return [graph.ids[unit] for unit in units]


def _print(graph: AbstractGraph, report: dict[str, Any]) -> None:
    names = dict(zip(graph.ids, graph.units.names, strict=True))

    def line(ids: Sequence[int]) -> str:
        return " ".join(names[number] for number in ids)

    for i, groups in enumerate(report.get("stages", ()), start=1):
        say(f"stage {i:3}: {' | '.join(map(line, groups))}")
    for i, units in enumerate(report.get("streams", ())):
        say(f"stream {i:2}: {line(units)}")
    latency, sequential = report["latency_us"], report["sequential_us"]
    speedup = f" ({sequential / latency:.2f}x)" if latency else ""
    say(f"{report['chosen']}: {latency:g} us, sequential {sequential:g} us{speedup}")
    if report.get("gap"):
        say(f"at most {100 * report['gap']:.2f} % above the optimum")
    counts = report["counts"]
    say(", ".join(f"{name} {value}" for name, value in counts.items() if value is not None))
