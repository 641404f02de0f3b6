"""``braid models``: list the registered models."""

from __future__ import annotations

import argparse

from braid.core.measurement import rival_text
from braid.core.tensor import guess_text
from braid.server.cli.connection import Subparsers, add_address, connect, connection_options
from braid.server.cli.text import print_json, print_table, size_text, summary_speed
from braid_client import Model, ScheduleSummary

COLUMNS = ("name", "version", "state", "size", "inputs", "outputs", "speed-up")


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("models", help="list the registered models")
    parser.add_argument("--names", action="store_true", help="names only, one a line")
    parser.add_argument("--json", action="store_true", help="everything, as a JSON list")
    add_address(parser)


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        models = client.models()
    if args.names:
        print("".join(f"{name}\n" for name in sorted({model.name for model in models})), end="")
    elif args.json:
        print_json(models)
    elif not models:
        options = connection_options(args)
        print(f"no models; register one: braid register NAME FILE --wait{options}")
    else:
        print_table(COLUMNS, map(_row, models), right=("size",))
        for model in models:
            named = f"{model.name} version {model.version}"
            if model.rows:
                print(f"{named}: requests share no batch: {model.rows}")
            if model.guessed_extents:
                print(f"{named}: {guess_text(model.guessed_extents)}")
            for axis in (*model.padding, *filter(None, [model.lengths])):
                print(f"{named}: {axis}")
    return 0


def _beside(plan: ScheduleSummary) -> str:
    beside = rival_text(plan.best_other_ratio, plan.best_other)
    return f", {beside}" if plan.best_other else ""


def _row(model: Model) -> tuple[str, ...]:
    several = len({plan.shapes for plan in model.schedules}) > 1
    schedules = (
        f"{plan.device}/{plan.batch_size}{f' at {plan.shapes}' if several else ''}: "
        f"{summary_speed(plan)}"
        f"{_beside(plan)}"
        f"{'' if plan.promoted else ', sequential serves'}"
        f"{', provisional' if plan.provisional else ''}"
        for plan in model.schedules
    )
    return (
        model.name,
        model.version,
        f"{model.state.lower()}: {model.message}" if model.message else model.state.lower(),
        size_text(model.size_bytes),
        ", ".join(map(str, model.inputs)),
        ", ".join(map(str, model.outputs)),
        "; ".join(schedules) or "-",
    )
