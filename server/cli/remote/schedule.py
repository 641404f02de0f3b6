"""``braid schedule``: a schedule as tables, as a picture, as a trace; and what two differ in."""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from braid.charts.difference import compare
from braid.charts.kinds import kind_text
from braid.core.graph import Operator, OpGraph
from braid.core.measurement import (
    interval_text,
    rival_text,
    side_by_side_text,
    size_text,
    speed_text,
    spread_text,
)
from braid.core.plan import engine_text
from braid.core.precision import AUTO
from braid.core.quantisation import quantisation_text
from braid.core.runtimes import RUNTIMES
from braid.core.schedule import Provenance, Schedule
from braid.server.cli.connection import Subparsers, add_address, connect
from braid.server.cli.parser import at_least_one
from braid.server.cli.progress import JobProgress
from braid.server.cli.remote.register import follow, watch
from braid.server.cli.text import duration_text, latency_text, print_table, say
from braid.server.console import pictures
from braid.server.console.formats import plan_names
from braid_client import Client

EXAMPLES = """examples:
  braid schedule show inception --batch 4
  braid schedule show inception --format svg --block -1 --output last-block.svg
  braid schedule show inception --format perfetto --output trace.json   # open in ui.perfetto.dev
  braid schedule diff inception --batch 1 --against-batch 32
  braid schedule again inception --batch 4 --wait
  braid schedule pin inception onnxruntime
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "schedule",
        help="show a model's schedule, or what two differ in; make them again",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(
        dest="action", metavar="show | diff | again | pin | unpin", required=True
    )
    show = actions.add_parser("show", help="print or draw a schedule")
    _add_which(show)
    show.add_argument("--format", choices=("text", "json", "svg", "perfetto"), default="text")
    show.add_argument(
        "--block", metavar="N", type=int, help="draw this block only, -1 for the last"
    )
    diff = actions.add_parser("diff", help="what two schedules of a model differ in")
    _add_which(diff)
    diff.add_argument("--against-batch", metavar="N", type=at_least_one, help="default: the same")
    diff.add_argument("--against-device", metavar="DEVICE", help="default: the same")
    diff.add_argument("--against-version", metavar="N", help="default: the same")
    diff.add_argument("--format", choices=("text", "json", "svg"), default="text")
    for action in (show, diff):
        action.add_argument("--output", metavar="FILE", type=Path, help="default: stdout")
        add_address(action)
    again = actions.add_parser(
        "again",
        help="measure and make schedules again",
        description="Measure and make schedules again. They serve until the new ones are verified.",
    )
    _add_which(again, is_one=False)
    again.add_argument("--wait", action="store_true", help="show progress until the job ends")
    again.add_argument("--json", action="store_true", help="the job, as a JSON list")
    add_address(again)

    pin = actions.add_parser("pin", help="let one plan serve, so that equal inputs give equal bits")
    unpin = actions.add_parser("unpin", help="let requests decide again which plan serves")
    for action in (pin, unpin):
        action.add_argument("name", metavar="NAME")
        add_address(action)
    pin.add_argument(
        "plan", metavar="PLAN", help="planner or runtime, as braid schedule show has it"
    )


def _add_which(parser: argparse.ArgumentParser, *, is_one: bool = True) -> None:
    parser.add_argument("name", metavar="NAME")
    batch, device = ("1", "the first") if is_one else ("all", "all")
    parser.add_argument(
        *("--batch",),
        metavar="N",
        type=at_least_one,
        default=1 if is_one else None,
        help=f"batch size (default: {batch})",
    )
    parser.add_argument("--device", default="", help=f"e.g. cpu (default: {device})")
    if is_one:
        parser.add_argument(
            "--shapes",
            metavar="NAME=N,...",
            default="",
            help="of several scheduled shapes, as braid models --json has them (default: the main)",
        )
    parser.add_argument(
        "--version", metavar="N", help="a number or a label; default: the one that answers"
    )


def run(args: argparse.Namespace) -> int:
    if args.action == "again":
        return _again(args)
    if args.action in ("pin", "unpin"):
        return _pin(args)
    with connect(args) as client:
        return _diff(client, args) if args.action == "diff" else _show(client, args)


def _pin(args: argparse.Namespace) -> int:
    plan = args.plan if args.action == "pin" else ""
    with connect(args, patient=True) as client:
        client.pin_plan(args.name, plan)
    say(
        f"{args.name}: {plan} serves" if plan else f"{args.name}: requests decide which plan serves"
    )
    return 0


def _again(args: argparse.Namespace) -> int:
    with connect(args, patient=True) as client, JobProgress() as progress:
        job = client.schedule_again(
            args.name, batch=args.batch, device=args.device, version=args.version
        )
        if args.wait:
            return watch(client, job, args, progress)
    return follow(job, args, "scheduled again")


def _show(client: Client, args: argparse.Namespace) -> int:
    document, graph = client.schedule(
        *(args.name, args.batch, args.device),
        version=args.version,
        shapes=args.shapes,
    )
    if args.format == "json":
        _write(json.dumps(document, indent=2), args)
    elif args.format == "text":
        which = pictures.drawn(args.name, document, graph)
        print_schedule(args.name, which.schedule, which.graph)
        _print_contest(client, args, which.schedule)
    else:
        which = pictures.drawn(args.name, document, graph, args.block)
        is_svg = args.format == "svg"
        _write(pictures.svg(which) if is_svg else json.dumps(pictures.trace(which)), args)
    return 0


def _diff(client: Client, args: argparse.Namespace) -> int:
    addresses = (
        (args.batch, args.device, args.version),
        (
            args.against_batch or args.batch,
            args.device if args.against_device is None else args.against_device,
            args.against_version or args.version,
        ),
    )
    first, second = (
        pictures.drawn(
            args.name,
            *client.schedule(*(args.name, batch, device), version=version, shapes=args.shapes),
        )
        for batch, device, version in addresses
    )
    difference = compare(first.schedule, second.schedule)
    if args.format == "svg":
        _write(pictures.compared_svg(first, second), args)
    elif args.format == "json":
        _write(json.dumps(pictures.difference_json(difference), indent=2), args)
    else:
        for line in pictures.difference_lines(first, second):
            say(line)
        if rows := list(pictures.difference_rows(difference)):
            columns = ("stage", "change", "its units run in", "latency", "latency there")
            print_table(columns, rows, right=("stage", "latency", "latency there"))
    return 0


def _print_contest(client: Client, args: argparse.Namespace, schedule: Schedule) -> None:
    for summary in client.model(args.name, version=args.version).schedules:
        contest, key = summary.contest, schedule.key
        is_shown = (summary.batch_size, summary.shapes) == (key.batch_size, key.shapes)
        is_shown = is_shown and args.device in ("", summary.device)
        if contest is None or not (is_shown and summary.promoted):  # None: of an older server
            continue
        say(contest.text)
        if len(contest.candidates) > 1:
            numbers = ("latency", "pairs", "ratio", "interval", "share", "runs")
            print_table(
                ("plan", *numbers),
                (
                    (
                        row.name,
                        duration_text(row.latency_us) if row.latency_us else "-",
                        str(row.pairs),
                        "-" if row.ratio is None else f"{row.ratio:.3f}",
                        interval_text(row.low, row.high),
                        f"{row.share:.1%}",
                        str(row.runs),
                    )
                    for row in contest.candidates
                ),
                right=numbers,
            )
        return


def _write(text: str, args: argparse.Namespace) -> None:
    if args.output is None:
        print(text)
    else:
        args.output.write_text(text)
        say(f"written: {args.output}")


def print_schedule(name: str, schedule: Schedule, graph: OpGraph) -> None:
    """Print a schedule's plan, measurements, candidates and stages."""
    for line in schedule_lines(name, schedule):
        say(line)
    if len(schedule.provenance.candidates) > 1:
        print_table(
            ("candidate", "latency", "spread", "runs", "speed-up", "error", "memory", "remark"),
            _candidate_rows(schedule),
            right=("latency", "spread", "runs", "speed-up", "error", "memory"),
            whole=("latency", "spread", "runs", "speed-up", "error", "memory"),
        )
    if schedule.stages:
        print_table(
            ("stage", "strategy", "latency", "group", "units"),
            _stage_rows(schedule, graph),
            right=("stage", "latency", "group"),
        )
    else:
        launches = enumerate(schedule.plan.launches, 1)
        rows = ((at, each.stream, unit_text(graph.operators[each.unit])) for at, each in launches)
        print_table(("position", "stream", "unit"), rows)


def schedule_lines(name: str, schedule: Schedule) -> Iterator[str]:
    provenance = schedule.provenance
    key = schedule.key
    shapes = f", {key.shapes}" if key.shapes else ""
    plan = f"plan {schedule.plan_id} by {key.planner}"
    chosen = " (chosen by auto)" if key.precision == AUTO else ""
    yield f"{name}: {plan}, batch {key.batch_size}{shapes}, {schedule.precision}{chosen}"
    if provenance.measured_us is not None and provenance.sequential_us is not None:
        yield (
            f"measured {latency_text(provenance.measured_us, provenance.spread)}, "
            f"sequential {latency_text(provenance.sequential_us, schedule.sequential_spread)}, "
            f"speed-up {speed_text(schedule.speed, 'not known')}"
        )
    if (best := schedule.best_other) is not None:
        yield f"beside the best other runtime: {rival_text(best.ratio, best.name)}"
    if schedule.runtime:
        yield f"{RUNTIMES[schedule.runtime]} runs the model; if it cannot, the plan below does"
    elif schedule.planner != key.planner:
        yield f"the plan is that of {schedule.planner}"
    for part in schedule.plan.parts:
        names = [schedule.unit_names[unit] for unit in part.units]
        what = f"units {names[0]} to {names[-1]} ({len(names)})"
        if part.rows:
            what = f"{part.rows} of {schedule.key.batch_size} rows"
        yield f"{what} run in {engine_text(part)}"
    yield _search(schedule)
    if provenance.max_abs_error is not None:
        yield _error(provenance)
    if provenance.quantisation is not None:
        yield f"8-bit integers: {quantisation_text(provenance.quantisation)}"
    for precision, reason in provenance.left_out.items():
        yield f"{precision} took no part: {reason}"
    if provenance.side_by_side is not None:
        plan = f", plan {schedule.side_by_side_id}" if provenance.side_by_side.pays else ""
        yield f"side by side, under load: {side_by_side_text(provenance.side_by_side)}{plan}"
    if provenance.kernels:
        counts = Counter(provenance.kernels.values()).most_common()
        yield f"kernels by measurement: {', '.join(f'{count} {name}' for name, count in counts)}"
    if not provenance.promoted:
        yield f"not promoted, the sequential plan serves: {provenance.reason or 'no reason given'}"


def _search(schedule: Schedule) -> str:
    provenance = schedule.provenance
    facts = [f"{len(schedule.unit_names)} units"]
    if schedule.stages:
        groups = sum(len(stage.groups) for stage in schedule.stages)
        facts[0] += f" in {len(schedule.stages)} stages, {groups} groups"
    if provenance.predicted_us is not None:
        facts.append(f"predicted {duration_text(provenance.predicted_us)}")
    facts.append(f"{provenance.stages_measured} stages measured, {provenance.stages_reused} reused")
    facts.append(f"searched {provenance.search_seconds:.2f} s")
    if provenance.gap is not None:
        facts.append(f"within {provenance.gap:.1%} of the best possible by its measurements")
    return ", ".join(facts)


def _error(provenance: Provenance) -> str:
    relative = provenance.max_rel_error or 0.0
    allowed = f", {provenance.tolerance:.2g} is allowed" if provenance.tolerance is not None else ""
    where = f"on {provenance.samples} samples" if provenance.samples else "on seeded inputs"
    same = provenance.top_agreement
    agrees = "" if same is None else f"; the same top class in {same:.1%} of the samples"
    return (
        f"largest difference from the FP32 reference {where}: {provenance.max_abs_error:.2g}, "
        f"{relative:.2g} of the largest element{allowed}{agrees}"
    )


def _candidate_rows(schedule: Schedule) -> Iterator[tuple[str, ...]]:
    """Make a row for each candidate that was measured as a whole model, sequential first."""
    candidates = schedule.provenance.candidates
    longest = max(contender.runs for contender in candidates)
    first = "won in service" if schedule.provenance.is_decided else "served first"
    names = plan_names(name for each in candidates for name in (each.name, *each.also))
    for contender in candidates:
        serves = contender is schedule.chosen and schedule.provenance.promoted
        remarks = [contender.remark, first if serves else ""]
        if 0 < contender.runs < longest:
            remarks.append("given up as slower")
        if contender.also:
            remarks.append(f"same plan: {', '.join(names[name].short for name in contender.also)}")
        yield (
            replace(contender, name=names[contender.name].short).full_name,
            "-" if contender.latency_us is None else duration_text(contender.latency_us),
            spread_text(contender.spread),
            str(contender.runs),
            speed_text(contender.speed),
            "-" if contender.max_rel_error is None else f"{contender.max_rel_error:.1g}",
            "-" if contender.activation_bytes is None else size_text(contender.activation_bytes),
            "; ".join(filter(None, remarks)),
        )


def _stage_rows(schedule: Schedule, graph: OpGraph) -> Iterator[tuple[str, ...]]:
    """Make a row for each group; the first row of a stage holds the facts of the whole stage."""
    for index, stage in enumerate(schedule.stages):
        latency = "-" if stage.latency_us is None else duration_text(stage.latency_us)
        head = (str(index + 1), stage.strategy, latency)
        for number, group in enumerate(stage.groups):
            units = " -> ".join(unit_text(graph.operators[unit]) for unit in group)
            yield (*(head if number == 0 else ("", "", "")), str(number + 1), units)


def unit_text(op: Operator) -> str:
    """Text of a unit: name, kind and fused operators: ``fire2/squeeze (convolution+relu)``."""
    return f"{op.name} ({kind_text(op)})"
