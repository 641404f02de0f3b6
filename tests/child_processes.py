"""Kill the processes that a test run leaves running, however it ends: Ctrl-C, SIGKILL, a timeout.

    pytest ──sets──> TEST_RUN_OF_BRAID, inherited by all that it starts, and by what those start
       └──starts──> this file as a program: waits until pytest has ended, kills who has the variable

A fixture's teardown does not run when pytest is killed, and servers start sessions of their own.
Imports the standard library only, as the program has to start within milliseconds.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "TEST_RUN_OF_BRAID"
POLL_SECONDS = 0.1
GIVE_UP_SECONDS = 30.0


def kill_children_at_exit() -> None:
    """Have every process that is started from now on killed once this one has ended.

    Processes of pytest-xdist belong to the run that started them.
    """
    if VARIABLE in os.environ or not Path("/proc/self/environ").exists():
        return
    os.environ[VARIABLE] = f"{os.getpid()}-{time.time_ns()}"
    # Not inherited by the watcher, which would kill itself; its own session keeps Ctrl-C away.
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), os.environ[VARIABLE]],
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    ).returncode = 0  # it outlives this process: Popen is not to warn of that


def started_by(run: str) -> Iterator[int]:
    """Process ids of those with ``VARIABLE`` set to ``run`` that have not ended."""
    wanted = f"{VARIABLE}={run}".encode()
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and wanted in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)
        except OSError:  # it has ended, or belongs to another user
            continue


def main(parent: int, run: str) -> None:
    """Wait for the end of ``parent``, then kill until nobody is left."""
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while time.monotonic() < deadline and (left := list(started_by(run))):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
