"""``braid completion``: a completion script for bash, zsh or fish, made from the parser itself."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from braid.server.cli.connection import Subparsers

SHELLS = ("bash", "zsh", "fish")
EPILOG = """to install:
  bash   braid completion bash > ~/.local/share/bash-completion/completions/braid
  zsh    braid completion zsh > ~/.braid-completion.zsh; source it from ~/.zshrc
  fish   braid completion fish > ~/.config/fish/completions/braid.fish
"""

BASH = """# Completion of braid for bash; made by `braid completion bash`.
_braid() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} path="" each
  for each in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case " %(commands)s " in *" ${path:+$path/}$each "*) path=${path:+$path/}$each ;; esac
  done
  local words=""
  case "$path $before" in
%(values)s
  esac
  if [ -z "$words" ]; then
    case "$path" in
%(words)s
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _braid braid
"""
ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


@dataclass(frozen=True, slots=True)
class Node:
    """A command, or a command of a command."""

    path: tuple[str, ...]
    text: str
    commands: tuple[str, ...]
    options: tuple[tuple[str, str, tuple[str, ...], bool], ...]  # flag, help, choices, takes value


def add_parser(subparsers: Subparsers) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "completion",
        help="print a completion script for your shell",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS)


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    from braid.server.cli.main import build_parser

    nodes = list(walk(build_parser()))
    if args.shell == "fish":
        print("\n".join(_fish(nodes)))
    else:
        print((ZSH if args.shell == "zsh" else "") + _bash(nodes), end="")
    return 0


def walk(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = (), text: str = ""
) -> Iterator[Node]:
    """The parser and all parsers below it."""
    below: dict[str, argparse.ArgumentParser] = {}
    texts: dict[str, str] = {}
    options = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below |= action.choices
            texts |= {each.dest: each.help or "" for each in action._choices_actions}
        for flag in action.option_strings:
            if flag.startswith("--") and action.help != argparse.SUPPRESS:
                choices = tuple(map(str, action.choices or ()))
                options.append((flag, action.help or "", choices, action.nargs != 0))
    yield Node(path, text, tuple(below), tuple(options))
    for name, each in below.items():
        yield from walk(each, (*path, name), texts.get(name, ""))


def _bash(nodes: list[Node]) -> str:
    words, values, commands = [], [], []
    for node in nodes:
        here = "/".join(node.path)
        commands.append(here)
        offered = [*node.commands, *(flag for flag, *_ in node.options)]
        if node.path == ("completion",):
            offered += SHELLS
        words.append(f'    "{here}") words="{" ".join(offered)}" ;;')
        for flag, _, choices, _ in node.options:
            if choices:
                values.append(f'    "{here} {flag}") words="{" ".join(choices)}" ;;')
    return BASH % {
        "commands": " ".join(filter(None, commands)),
        "words": "\n".join(words),
        "values": "\n".join(values),
    }


def _fish(nodes: list[Node]) -> Iterator[str]:
    yield "# Completion of braid for fish; made by `braid completion fish`."
    for node in nodes:
        seen = "".join(f"; and __fish_seen_subcommand_from {name}" for name in node.path)
        condition = seen.removeprefix("; and ") if node.path else "__fish_use_subcommand"
        texts = {each.path: each.text for each in nodes}
        for name in node.commands:
            about = _quoted(texts[(*node.path, name)])
            yield f"complete -c braid -n '{condition}' -f -a {name} -d '{about}'"
        for flag, about, choices, takes in node.options:
            more = f" -x -a '{' '.join(choices)}'" if choices else " -r" if takes else ""
            flag = flag.removeprefix("--")
            yield f"complete -c braid -n '{condition}' -l {flag}{more} -d '{_quoted(about)}'"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
