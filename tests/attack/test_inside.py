"""A confined importer can compute and write into its folder, and nothing else."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.attack.inside import ON_X86, TRIES

NOBODY = 65534
VERSION = "import ctypes; print(ctypes.CDLL(None).syscall(444, None, 0, 1))"  # of Landlock
USERS = [os.getuid(), *([NOBODY] if os.getuid() == 0 else [])]


@pytest.fixture(scope="module", params=USERS)
def ends(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """How each try ended that a confined process of this user made."""
    user = {"user": request.param} if os.getuid() == 0 else {}
    asked = subprocess.run([sys.executable, "-c", VERSION], capture_output=True, text=True, **user)
    if asked.returncode != 0:
        pytest.skip(f"user {request.param} may not run this Python")
    if int(asked.stdout) < 6:
        pytest.skip("this kernel's Landlock is older than what is described")
    base = tmp_path_factory.mktemp("inside")
    work, outside = base / "work", base / "outside"
    for folder in (work, outside):
        folder.mkdir()
    secret = outside / "secret"
    secret.write_text("kept")
    for path in (work, outside, secret):
        os.chown(path, request.param, -1)
    for parent in (base, *base.parents[:3]):
        if parent.stat().st_uid == os.getuid() and parent != Path("/tmp"):
            parent.chmod(parent.stat().st_mode | 0o055)
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, **user)
    try:
        command = [sys.executable, "-m", "tests.attack.inside"]
        done = subprocess.run(
            [*command, str(work), str(outside), str(bystander.pid)],
            cwd=ROOT, capture_output=True, text=True, timeout=120, **user,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert bystander.poll() is None
        assert secret.read_text() == "kept"
        assert os.listdir(outside) == ["secret"]
        yield json.loads(done.stdout)
    finally:
        bystander.kill()
        bystander.communicate()


@pytest.mark.parametrize("name", TRIES)
def test_a_try_from_inside_ends_as_it_must(name: str, ends: dict[str, str]) -> None:
    if name.startswith(ON_X86) and platform.machine() != "x86_64":
        pytest.skip("numbers of calls of x86-64")

    assert ends[name] in TRIES[name][1]
