"""Servers of the comparisons that run in the tests' environment."""

import shutil
from pathlib import Path

import pytest

from benchmarks.peers.hosting.contract import SERVERS

ANSWERED = "(array.tobytes())"


@pytest.fixture
def servers(tmp_path: Path) -> Path:
    """Braid, thirty lines, and thirty lines with wrong answers, in the tests' environment."""
    folder = tmp_path / "servers"
    leave_out = shutil.ignore_patterns("requirements.txt", "__pycache__")
    for name in ("braid", "thirty_lines_ort"):
        shutil.copytree(SERVERS / name, folder / name, ignore=leave_out)
    shutil.copytree(folder / "thirty_lines_ort", folder / "off_by_one")
    program = folder / "off_by_one" / "serve.py"
    right = program.read_text()
    assert ANSWERED in right
    program.write_text(right.replace(ANSWERED, "((array + 1).tobytes())"))
    return folder
