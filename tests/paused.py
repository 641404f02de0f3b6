"""The fast suite while its test processes are stopped and continued at random.

    python -m tests.paused --seed 1     ends as pytest does

    test process   ── runs ── stopped ── runs ─── stopped for seconds ─── runs ──
    its servers    ── run ───────────────────────────────────────────────────────

Finds tests that count on being scheduled soon, as they are not where twenty others want the core.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from contextlib import suppress

import psutil

from tests import ROOT, child_processes

RUNS_S = (0.02, 0.5)
"""Seconds from one stop to the next: least, most."""

STOPPED_S = (0.02, 0.6)
"""Seconds of a usual stop."""

LONG_S = 6.0
ONE_IN = 100
"""Of so many stops one takes ``LONG_S``."""


def running_tests(pytest: psutil.Process) -> list[psutil.Process]:
    """Processes in which tests run; what they start is not among them."""
    watcher = child_processes.__file__
    return [each for each in pytest.children() if watcher not in each.cmdline()]


def strike(process: psutil.Process, seconds: float) -> None:
    """Stop a process for this long."""
    process.suspend()
    try:
        time.sleep(seconds)
    finally:
        process.resume()


def main() -> int:
    """Run the suite; returns the exit code of pytest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2, help="test processes side by side")
    args, others = parser.parse_known_args()
    chance, stops = random.Random(args.seed), 0
    command = [sys.executable, "-m", "pytest", "-n", str(args.workers), "--no-loadscope-reorder"]
    with subprocess.Popen([*command, *others], cwd=ROOT) as suite:
        while suite.poll() is None:
            time.sleep(chance.uniform(*RUNS_S))
            with suppress(psutil.NoSuchProcess):
                if found := running_tests(psutil.Process(suite.pid)):
                    seconds = chance.uniform(*STOPPED_S) if chance.randrange(ONE_IN) else LONG_S
                    strike(chance.choice(found), seconds)
                    stops += 1
    print(f"{stops} stops by seed {args.seed}")
    return suite.returncode


if __name__ == "__main__":
    sys.exit(main())
