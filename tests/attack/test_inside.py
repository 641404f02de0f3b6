"""A confined importer can compute and write into its folder, and nothing else."""

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.attack.inside import ON_X86, TRIES

NOBODY = 65534
VERSION = "import ctypes; print(ctypes.CDLL(None).syscall(444, None, 0, 1))"  # of Landlock
USERS = [os.getuid(), *([NOBODY] if os.getuid() == 0 else [])]


@pytest.fixture(scope="module", params=USERS)
def ends(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """How each try ended that a confined process of this user made."""
    user: int = request.param
    asked = subprocess.run([sys.executable, "-c", VERSION], capture_output=True, text=True)
    if int(asked.stdout) < 6:
        pytest.skip("this kernel's Landlock is older than what is described")
    with tempfile.TemporaryDirectory(prefix="braid-inside-") as folder:
        yield ends_in(Path(folder), user)


def ends_in(base: Path, user: int) -> dict[str, str]:
    """Make the tries in a folder that other test runs do not close to other users, as pytest's."""
    base.chmod(0o755)
    work, outside = base / "work", base / "outside"
    for folder in (work, outside):
        folder.mkdir()
    secret = outside / "secret"
    secret.write_text("kept")
    for path in (work, outside, secret):
        os.chown(path, user, -1)
    other = None if user == os.getuid() else user
    bystander = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, user=other)
    try:
        command = [sys.executable, "-m", "tests.attack.inside"]
        done = subprocess.run(
            [*command, str(work), str(outside), str(bystander.pid), str(user)],
            cwd=ROOT, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert bystander.poll() is None
        assert os.sched_getaffinity(bystander.pid) == os.sched_getaffinity(0)
        assert secret.read_text() == "kept"
        assert os.listdir(outside) == ["secret"]
        ends: dict[str, str] = json.loads(done.stdout)
        if not can_reach(Path(sys.base_prefix), user):
            del ends["a library"]
        return ends
    finally:
        bystander.kill()
        bystander.communicate()


def can_reach(folder: Path, user: int) -> bool:
    """True if a user may enter a folder and all above it; the superuser and owners always."""
    facts = [each.stat() for each in (folder, *folder.parents)]
    return user == 0 or all(each.st_uid == user or each.st_mode & 0o001 for each in facts)


@pytest.mark.parametrize("name", TRIES)
def test_a_try_from_inside_ends_as_it_must(name: str, ends: dict[str, str]) -> None:
    if name.startswith(ON_X86) and platform.machine() != "x86_64":
        pytest.skip("numbers of calls of x86-64")
    if name not in ends:
        pytest.skip("Python's own folder is closed to this user")

    assert ends[name] in TRIES[name][1]
