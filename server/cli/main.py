"""Console script ``braid``. Its manual page is ``braid --help``; see ``MANUAL``."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import braid.core.errors
import braid_client
from braid.server.cli.connection import Subparsers, tls_hint
from braid.server.cli.parser import INTERRUPTED, Parser
from braid.server.variables import unknown_variables

_LOCAL = ("serve", "token", "database", "ray", "demo", "plan", "benchmark")
_REMOTE = (
    *("serving", "register", "models", "jobs", "nodes", "delete", "infer", "schedule", "health"),
)

COMMANDS: dict[str, Callable[[], Any]] = {
    **{name: partial(import_module, f"braid.server.cli.local.{name}") for name in _LOCAL},
    **{name: partial(import_module, f"braid.server.cli.remote.{name}") for name in _REMOTE},
    "completion": partial(import_module, "braid.server.cli.completion"),
}
"""Loads the module of a command, with ``add_parser`` and ``run``: that of a server takes long."""

GROUPS = (
    ("Run a server", ("serve", "health", "nodes", "token", "database", "ray")),
    ("Models and their schedules", ("register", "models", "jobs", "schedule", "serving", "delete")),
    ("Use a model", ("infer", "benchmark")),
    ("Study planners, no server needed", ("plan", "demo")),
    ("Your shell", ("completion",)),
)

MANUAL = """\
Braid serves models over gRPC and finds out, by measuring on the device itself,
which of their operators should run side by side. Register an ONNX model; it
answers as soon as it is imported, and a faster plan is swapped in once it has
been measured and verified.

{commands}

Lists and answers are tables for people on a terminal, plain lines elsewhere;
--json makes them JSON for programs. Progress goes to stderr. Ctrl-C while a
command waits for a registration ends the waiting, not the registration.
`braid COMMAND --help` describes one command."""

EPILOG = """\
environment:
  BRAID_ADDRESS  HOST:PORT of the server that commands talk to (127.0.0.1:8001)
  BRAID_TOKEN    token that they show; BRAID_TOKEN_FILE names a file with it
  BRAID_*        settings of `braid serve`, such as BRAID_STORE; flags win
  NO_COLOR       no colours in tables and progress

exit status:
  0    it worked
  1    it failed; one line on stderr says why
  2    the command line or a setting is wrong
  3    the model serves, but sequentially where no schedule was found
  130  interrupted by Ctrl-C

examples:
  braid serve squeezenet=model.onnx
  braid register squeezenet model.onnx --batch-sizes 1,4 --wait
  braid infer squeezenet --input random
  braid schedule show squeezenet --batch 4 --format svg --output plan.svg
  braid models --json | jq '.[].name'
"""


def build_parser(names: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    parser = Parser(
        prog="braid",
        usage="braid [--version] COMMAND ...",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(parser=parser)  # completion describes all of it
    parser.add_argument("--version", action="version", version=braid_client.__version__)
    subparsers = parser.add_subparsers(
        dest="command", metavar="COMMAND", prog="braid", required=True, help=argparse.SUPPRESS
    )
    for name in names:
        COMMANDS[name]().add_parser(subparsers)
    parser.description = MANUAL.format(commands=_command_list(subparsers))
    return parser


def _command_list(subparsers: Subparsers) -> str:
    texts = {action.dest: action.help or "" for action in subparsers._choices_actions}
    lines = []
    for heading, names in GROUPS:
        lines.append(f"{heading}:")
        lines += [f"  {name:<12}{texts[name]}" for name in names if name in texts]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else argv
    name = given[0] if given else ""
    alone = name in COMMANDS and name != "completion"  # which describes all of them
    parser = build_parser([name] if alone else COMMANDS)
    if not given:
        parser.print_help(sys.stderr)
        return 2
    args = parser.parse_args(given)
    if args.command != "serve":  # which logs them
        for name, similar in unknown_variables().items():
            hint = f"; did you mean {similar}?" if similar else ""
            print(f"braid: the variable {name} is not known{hint}", file=sys.stderr)
    try:
        return int(COMMANDS[args.command]().run(args))
    except KeyboardInterrupt:
        print(f"braid {args.command}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`braid models | head`); it has what it wanted.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (braid_client.BraidError, braid.core.errors.BraidError, OSError) as error:
        print(f"braid {args.command}: {_one_line(error, args)}", file=sys.stderr)
        return 1


def _one_line(error: Exception, args: argparse.Namespace) -> str:
    if isinstance(error, OSError) and isinstance(error.filename, str | os.PathLike):
        missing = isinstance(error, FileNotFoundError)
        return f"{error.filename}: {'no such file' if missing else error.strerror}"
    text = " ".join(str(error).split())
    if isinstance(error, braid_client.BraidError) and error.code is not None:
        if isinstance(error, braid_client.Unavailable) and error.request_id is None:
            if hint := tls_hint(args):
                return hint
            return f"no server answers at {args.address} ({text}); start one with `braid serve`"
        if isinstance(error, braid_client.ServerError) and error.request_id is not None:
            return f"{text} (request {error.request_id})"
    return text


if __name__ == "__main__":
    sys.exit(main())
