"""``braid --help``: complete."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

import pytest

from braid.server.cli.main import COMMANDS, GROUPS, build_parser, main


def test_the_manual_names_every_command_once_and_every_exit_code() -> None:
    text = build_parser().format_help()

    assert sorted(name for _, names in GROUPS for name in names) == sorted(COMMANDS)
    for name in COMMANDS:
        assert len(re.findall(rf"^  {name} +\S", text, re.MULTILINE)) == 1
    for code in (0, 1, 2, 130):
        assert re.search(rf"^  {code} +\S", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 80


Parser = argparse.ArgumentParser


def walk(
    parser: Parser, path: tuple[str, ...] = (), text: str = ""
) -> Iterator[tuple[tuple[str, ...], str, Parser]]:
    """Each command: its words, what the list of commands says about it, its parser."""
    yield path, text, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts = {each.dest: each.help or "" for each in action._choices_actions}
            for name, below in action.choices.items():
                yield from walk(below, (*path, name), texts.get(name, ""))


def options(parser: Parser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        if any(flag.startswith("--") for flag in action.option_strings):
            yield action


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for path, text, parser in walk(build_parser()):
        with pytest.raises(SystemExit) as stop:
            main([*path, "--help"])
        assert stop.value.code == 0
        assert capsys.readouterr().out.startswith("usage: braid")
        assert text or not path
        for option in options(parser):
            assert option.help or option.choices, (path, option.option_strings)


def test_every_listing_has_json() -> None:
    flags = {
        path: {flag for option in options(parser) for flag in option.option_strings}
        for path, _, parser in walk(build_parser())
    }
    for command in ("models", "jobs", "register", "plan"):
        assert "--json" in flags[command,], command
    assert "--format" in flags["schedule", "show"]
