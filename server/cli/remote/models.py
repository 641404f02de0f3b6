"""``braid models``: list the registered models; ``models NAME``: all about one."""

import argparse
import re
from collections.abc import Iterator

from braid.core.measurement import error_text, rival_text, size_text
from braid.core.runtimes import SERVED_WHOLE, plan_text
from braid.core.schedule import SEQUENTIAL, SERVES
from braid.core.tensor import guess_text
from braid.server.cli.connection import Subparsers, add_address, connect, connection_options
from braid.server.cli.text import (
    duration_text,
    latency_text,
    print_json,
    print_table,
    say,
    shortened,
    summary_speed,
)
from braid_client import Model, ScheduleSummary

COLUMNS = ("name", "version", "state", "size", "inputs", "serves")
MOST_INPUTS, MOST_SHAPES, MOST_REASON = 60, 16, 240  # characters in tables


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("models", help="list the registered models, or all about one")
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="all about the versions of this one"
    )
    parser.add_argument("--names", action="store_true", help="names only, one a line")
    parser.add_argument("--json", action="store_true", help="everything, as a JSON list")
    add_address(parser)


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        models = client.models()
        if args.name is not None:
            its = [model for model in models if model.name == args.name]
            models = its or [client.model(args.name)]  # NOT_FOUND
    if args.names:
        print("".join(f"{name}\n" for name in sorted({model.name for model in models})), end="")
    elif args.json:
        print_json(models)
    elif not models:
        options = connection_options(args)
        say(f"no models; register one: braid register NAME FILE --wait{options}")
    elif args.name is not None:
        for model in models:
            say(f"{_named(model)}: {size_text(model.size_bytes)}, {_state(model)}")
            print_details(model)
    else:
        print_table(COLUMNS, map(_row, models), right=("size",), whole=COLUMNS[1:4] + COLUMNS[5:])
        for model in models:
            if model.message:
                say(shortened(f"{_named(model)}: {_state(model)}", MOST_REASON))
            if model.rows:
                say(f"{_named(model)}: requests share no batch: {model.rows}")
    return 0


def _named(model: Model) -> str:
    return f"{model.name} version {model.version}"


def _state(model: Model) -> str:
    return ": ".join(filter(None, (model.state.lower(), model.message)))


def _row(model: Model) -> tuple[str, ...]:
    lines = []
    for plan in model.schedules:
        serves = re.sub(r" \(.*?\)", "", _serves(plan).partition("; ")[0])  # of its own plans
        lines.append(f"{plan.device}/{plan.batch_size}: {serves}")
        lines += filter(None, [shortened(_at(model, plan), MOST_SHAPES)])
    return (
        model.name,
        model.version,
        model.state.lower(),
        size_text(model.size_bytes),
        shortened(", ".join(map(str, model.inputs)), MOST_INPUTS),
        "\n".join(lines) or "-",
    )


def _serves(plan: ScheduleSummary) -> str:
    if not plan.promoted:
        return f"own plan ({plan_text(SEQUENTIAL)}), {duration_text(plan.sequential_us)}"
    known = f"{plan_text(plan.planner)}, {duration_text(plan.measured_us)}"  # by an older server
    return known if plan.contest is None else plan.contest.text.removeprefix(SERVES)


def _at(model: Model, plan: ScheduleSummary) -> str:
    """Text of the shapes of a schedule, of a model with schedules for several."""
    several = len({each.shapes for each in model.schedules}) > 1
    return f" at {plan.shapes}" if several and plan.shapes else ""


def print_details(model: Model) -> None:
    for kind, specs in (("input", model.inputs), ("output", model.outputs)):
        for spec in specs:
            say(f"{kind} {spec}")
    numbers = ("sequential (spread)", "scheduled (spread)", "speed-up")
    if model.schedules:
        print_table(
            ("batch", "device", "precision", *numbers),
            (
                (
                    f"{plan.batch_size}{shortened(_at(model, plan), MOST_SHAPES)}",
                    plan.device,
                    plan.precision,
                    latency_text(plan.sequential_us, plan.sequential_spread),
                    latency_text(plan.measured_us, plan.spread),
                    summary_speed(plan),
                )
                for plan in model.schedules
            ),
            right=("batch", *numbers),
            whole=("speed-up",),
        )
    for plan in model.schedules:
        at = f"batch {plan.batch_size}{_at(model, plan)} on {plan.device}"
        say(f"{at} {SERVES}{_serves(plan)}")
        say(f"{at}: {'; '.join(_facts(plan))}")
    for warning in model.warnings:
        say(f"{'note' if warning.startswith(SERVED_WHOLE) else 'warning'}: {warning}")
    if model.guessed_extents:
        say(guess_text(model.guessed_extents))
    for axis in (*model.padding, *filter(None, [model.lengths])):
        say(str(axis))


def _facts(plan: ScheduleSummary) -> Iterator[str]:
    yield f"plan {plan.plan_id}"
    if plan.best_other:
        rival = rival_text(plan.best_other_ratio, plan.best_other)
        yield f"beside the best other runtime {rival}"
    if plan.max_rel_error is not None:
        yield f"error {error_text(plan.max_rel_error, plan.samples, plan.top_agreement)}"
    yield f"{plan.stages} stages, {plan.groups} groups"
