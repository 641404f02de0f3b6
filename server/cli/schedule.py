"""``braid schedule show``: a model's schedule as a table of stages, or as JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

from core.errors import InvalidArtefact
from core.graph import Operator, OpGraph, graph_from_json
from core.schedule import Schedule, schedule_from_json
from server.cli.connection import Subparsers, add_address, connect
from server.cli.text import duration_text, print_table


def add_parser(subparsers: Subparsers) -> None:
    """Declare the subcommand and its own subcommands."""
    parser = subparsers.add_parser("schedule", help="show a model's schedule")
    actions = parser.add_subparsers(dest="action", metavar="show", required=True)
    show = actions.add_parser("show", help="print a schedule")
    show.add_argument("name", metavar="NAME")
    show.add_argument("--batch", metavar="N", type=int, default=1, help="batch size (default: 1)")
    show.add_argument("--device", default="", help="e.g. cpu (default: the first)")
    show.add_argument("--version", metavar="N", help="default: the newest")
    show.add_argument("--format", choices=("text", "json"), default="text")
    add_address(show)


def run(args: argparse.Namespace) -> int:
    """Print the schedule."""
    with connect(args) as client:
        document, graph = client.schedule(args.name, args.batch, args.device, version=args.version)
    if args.format == "json":
        print(json.dumps(document, indent=2))
    else:
        print_schedule(args.name, document, graph)
    return 0


def print_schedule(name: str, document: Mapping[str, Any], graph_document: Any) -> None:
    """Print what was found and how, then the stages.

    Raises:
        InvalidArtefact: the schedule or its graph does not verify.
    """
    schedule = schedule_from_json(dict(document))
    graph = graph_from_json(graph_document)
    if tuple(op.name for op in graph.operators) != schedule.unit_names:
        raise InvalidArtefact("the schedule names other units than its graph")
    for line in _header(name, schedule):
        print(line)
    if schedule.stages:
        print_table(
            ("stage", "strategy", "latency", "group", "units"),
            _stage_rows(schedule, graph),
            right=("stage", "latency", "group"),
        )
    else:
        print_table(("position", "stream", "unit"), _launch_rows(schedule, graph))


def _header(name: str, schedule: Schedule) -> Iterator[str]:
    seen = schedule.provenance
    key = schedule.key
    shapes = f", {key.shapes}" if key.shapes else ""
    yield f"{name}: plan {schedule.id} by {key.planner}, batch {key.batch_size}{shapes}"
    if seen.measured_us is not None and seen.sequential_us is not None:
        yield (
            f"measured {duration_text(seen.measured_us)}, "
            f"sequential {duration_text(seen.sequential_us)}, speed-up {seen.speedup or 0:.2f}x"
        )
    groups = sum(len(stage.groups) for stage in schedule.stages)
    facts = [f"{len(schedule.unit_names)} units in {len(schedule.stages)} stages, {groups} groups"]
    if seen.predicted_us is not None:
        facts.append(f"predicted {duration_text(seen.predicted_us)}")
    facts.append(f"{seen.stages_measured} stages measured, {seen.stages_reused} reused")
    facts.append(f"searched {seen.search_seconds:.2f} s")
    yield ", ".join(facts)
    if seen.max_abs_error is not None:
        yield f"largest difference from the sequential outputs: {seen.max_abs_error:.2g}"
    if not seen.promoted:
        yield f"not promoted, the sequential plan serves: {seen.reason or 'no reason given'}"


def _stage_rows(schedule: Schedule, graph: OpGraph) -> Iterator[tuple[str, ...]]:
    """One row a group; what holds for the whole stage stands at its first."""
    for index, stage in enumerate(schedule.stages):
        latency = "-" if stage.latency_us is None else duration_text(stage.latency_us)
        head = (str(index + 1), stage.strategy, latency)
        for number, group in enumerate(stage.groups):
            units = " -> ".join(unit_text(graph.operators[unit]) for unit in group)
            yield (*(head if number == 0 else ("", "", "")), str(number + 1), units)


def _launch_rows(schedule: Schedule, graph: OpGraph) -> Iterator[tuple[str, ...]]:
    for position, launch in enumerate(schedule.plan.launches):
        yield str(position + 1), str(launch.stream), unit_text(graph.operators[launch.unit])


def unit_text(op: Operator) -> str:
    """A unit by name and kind, with what is fused into it: ``fire2/squeeze (convolution+relu)``."""
    fused = op.attributes.get("epilogue")
    steps = [step[0] for step in fused if isinstance(step, list)] if isinstance(fused, list) else []
    kinds = "+".join(str(kind).rpartition(".")[2] for kind in (op.kind, *steps))
    return f"{op.name} ({kinds})"
