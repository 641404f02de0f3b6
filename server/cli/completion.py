"""``braid completion``: a completion script for bash, zsh or fish, made from the parser itself."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from braid.server.cli.connection import Subparsers

SHELLS = ("bash", "zsh", "fish")
NAMES = "braid models --names 2>/dev/null"
"""Command that prints the names of the models at BRAID_ADDRESS, for completion."""

EPILOG = """to install:
  bash   braid completion bash > ~/.local/share/bash-completion/completions/braid
  zsh    braid completion zsh > _braid, in a folder of $fpath
  fish   braid completion fish > ~/.config/fish/completions/braid.fish
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "completion",
        help="print a completion script for your shell",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS)


def run(args: argparse.Namespace) -> int:
    import shtab  # of no use to other commands

    for action in _actions(args.parser):
        if action.metavar == "NAME" and action.dest in ("name", "model"):
            action.complete = shtab.cmd(NAMES)  # type: ignore[attr-defined]
        if action.type is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        if isinstance(action, argparse._SubParsersAction):
            action.help = None  # shtab leaves out what is hidden from --help
    print(shtab.complete(args.parser, args.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)
