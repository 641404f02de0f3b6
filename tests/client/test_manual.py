"""``braid --help`` and the completion scripts: complete, and run by a real shell."""

import argparse
import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from braid.server.cli.completion import SHELLS
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
    assert "--format" in flags["schedule", "show"] & flags["schedule", "diff"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("braid reg", "register"),
        ("braid schedule ", "show diff again pin unpin"),
        ("braid schedule show x --form", "--format"),
        ("braid schedule show x --format s", "svg"),
        ("braid --address h:1 jobs wat", "watch"),
        ("braid completion ", "bash zsh fish"),
        ("braid plan --planner ios", "ios-merge ios-parallel ios"),
        ("braid register net f --precision f", "fp32 fp16"),
        ("braid serve --log-format j", "json"),
        ("braid infer res", "resnet"),
        ("braid jobs --model b", "bert"),
    ],
)
def test_bash_completes(line: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    words = line.split(" ")
    setting = " ".join(f"'{word}'" for word in words)
    program = "braid() { echo resnet bert; }\n"  # what `braid models --names` would print
    program += f"{script}\nCOMP_WORDS=({setting}); COMP_CWORD={len(words) - 1}\n_shtab_braid\n"
    program += 'echo "${COMPREPLY[@]}"\n'

    ran = subprocess.run(
        ["bash", "-euc", program], capture_output=True, text=True, timeout=120, check=False
    )

    assert ran.returncode == 0, ran.stderr
    found = ran.stdout.split()
    assert [word for word in found if not word.startswith("--") or "--" in expected] == (
        expected.split()
    )


@pytest.mark.parametrize("shell", SHELLS)
def test_every_script_is_accepted_by_its_shell(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["completion", shell])
    script = capsys.readouterr().out
    assert "schedule" in script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=120)
