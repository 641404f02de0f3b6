"""What a confined process may not do, tried in one."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests import ROOT

TRIES = {
    "network": "socket.socket(socket.AF_INET, socket.SOCK_STREAM)",
    "local sockets": "socket.socket(socket.AF_UNIX)",
    "another program": "os.execv('/bin/true', ['true'])",
    "a child program": "subprocess.run(['/bin/true'], check=True)",
    "new namespaces": "check(libc.unshare(0x10000000))",
    "a debugger": "check(libc.ptrace(0, 0, 0, 0))",
}


def confined(statement: str) -> str:
    program = f"""
    import ctypes, os, socket, subprocess
    from braid.engine.importer.host.limits import ImportLimits
    from braid.engine.importer.sandbox.confinement import confine

    libc = ctypes.CDLL(None, use_errno=True)

    def check(result):
        if result:
            raise OSError(ctypes.get_errno(), "failed")

    confine(ImportLimits(), os.getppid())
    try:
        {statement}
    except OSError as error:
        print(type(error).__name__)
    else:
        print("done")
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    return done.stdout.strip() or done.stderr


@pytest.mark.parametrize("what", TRIES)
def test_a_confined_process_is_refused(what: str) -> None:
    assert confined(TRIES[what]) == "PermissionError"


def test_a_confined_process_computes_and_writes_in_its_folder(tmp_path: Path) -> None:
    place = tmp_path / "file"

    assert confined(f"open({os.fspath(place)!r}, 'w').write(str(sum(range(5))))") == "done"
    assert place.read_text() == "10"
