"""The console script ``braid``.

Exit codes: 0 it worked; 1 the operation failed, with one line on stderr that says why; 2 the
command line or a setting is wrong; 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Protocol

import braid_client
import core.errors
from server.cli import delete, demo, health, infer, jobs, models, register, schedule, serve
from server.cli.connection import Subparsers


class Command(Protocol):
    """What a module of a subcommand offers."""

    def add_parser(self, subparsers: Subparsers, /) -> object:
        """Declare the subcommand."""

    def run(self, args: argparse.Namespace, /) -> int:
        """Run it and return the exit code."""


COMMANDS: dict[str, Command] = {
    "serve": serve,
    "register": register,
    "models": models,
    "jobs": jobs,
    "delete": delete,
    "infer": infer,
    "schedule": schedule,
    "health": health,
    "demo": demo,
}
if importlib.util.find_spec("server.cli.plan") is not None:
    COMMANDS["plan"] = importlib.import_module("server.cli.plan")


def build_parser() -> argparse.ArgumentParser:
    """The command line with all its subcommands."""
    parser = argparse.ArgumentParser(
        prog="braid", description="Inference server that schedules operators side by side."
    )
    parser.add_argument("--version", action="version", version=braid_client.__version__)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS.values():
        command.add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = build_parser().parse_args(argv)
    try:
        return COMMANDS[args.command].run(args)
    except KeyboardInterrupt:
        print(f"braid {args.command}: interrupted", file=sys.stderr)
        return register.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`braid models | head`); it has what it wanted.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (braid_client.BraidError, core.errors.BraidError, OSError) as error:
        print(f"braid {args.command}: {_one_line(error, args)}", file=sys.stderr)
        return 1


def _one_line(error: Exception, args: argparse.Namespace) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, braid_client.BraidError) and error.code is not None:
        if isinstance(error, braid_client.Unavailable) and error.request_id is None:
            return f"no server answers at {args.address} ({text}); start one with `braid serve`"
        if isinstance(error, braid_client.ServerError) and error.request_id is not None:
            return f"{text} (request {error.request_id})"
    return text


if __name__ == "__main__":
    sys.exit(main())
