"""Control groups of this machine with a quota of CPU time, for tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from tests.clock import until

PERIOD_US = 100_000
_PLACES = (
    (Path("/sys/fs/cgroup"), "cpu.max", f"{{}} {PERIOD_US}"),
    (Path("/sys/fs/cgroup/cpu"), "cpu.cfs_quota_us", "{}"),
)
"""Where a group can be made, and what says its quota: of version 2, and of version 1."""


@contextmanager
def group_with_quota(cpus: float) -> Iterator[Path]:
    """A group with so many CPUs, without processes at the end; skips where none can be made."""
    folder = _made(round(cpus * PERIOD_US))
    if folder is None:
        pytest.skip("no control group with a quota of CPU time can be made here")
    try:
        yield folder
    finally:
        until(lambda: not (folder / "cgroup.procs").read_text())  # what was killed has ended
        folder.rmdir()


def within(group: Path) -> tuple[str, ...]:
    """What to put before a command so that it runs in a group."""
    return "sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"


def _made(quota_us: int) -> Path | None:
    for parent, name, value in _PLACES:
        folder = parent / f"braid-test-{uuid4().hex}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            with (folder / name).open("r+") as limit:  # it is there if the controller is
                limit.write(value.format(quota_us))
        except OSError:
            folder.rmdir()
            continue
        return folder
    return None
