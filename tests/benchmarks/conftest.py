"""Servers of the comparisons that run in the tests' environment."""

import shutil
from pathlib import Path

import pytest

from benchmarks.peers.hosting.contract import SERVERS

ANSWERED = "(array.tobytes())"


def copied(folder: Path, *servers: Path) -> Path:
    """A folder of servers without environments of their own."""
    leave_out = shutil.ignore_patterns("requirements.txt", "__pycache__")
    for server in servers:
        shutil.copytree(server, folder / server.name, ignore=leave_out)
    return folder


@pytest.fixture
def servers(tmp_path: Path) -> Path:
    """Braid, thirty lines, and thirty lines with wrong answers, in the tests' environment."""
    names = ("braid", "thirty_lines_ort")
    folder = copied(tmp_path / "servers", *(SERVERS / name for name in names))
    shutil.copytree(folder / "thirty_lines_ort", folder / "off_by_one")
    program = folder / "off_by_one" / "serve.py"
    right = program.read_text()
    assert ANSWERED in right
    program.write_text(right.replace(ANSWERED, "((array + 1).tobytes())"))
    return folder
