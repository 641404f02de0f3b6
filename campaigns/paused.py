"""The fast suite while each of its test processes is stopped and continued all the time.

    test process   ── runs ── stopped ── runs ── stopped ── runs ─── stopped for seconds ─── runs ──
    its servers    ── run ──────────────────────────────────────────────────────────────────────────

Finds tests that count on being scheduled soon, as they are not where twenty others want the core.
"""

from __future__ import annotations

import argparse
import heapq
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

import psutil

from tests import ROOT, child_processes

RUNS_S = (0.005, 0.05)
"""Seconds from the end of a stop to the next: least, most."""

STOPPED_S = {(0.02, 0.1): 300, (0.2, 0.6): 20, (4.0, 4.0): 1}
"""Seconds of a stop, least and most, and how often such stops come by comparison.

A caller of a server that stands still for five seconds within a request is sent away.
"""

MEASURES = (
    "tests/engine/runtime/test_yielding.py"
    "::test_a_time_counts_without_what_another_process_took_of_the_core"
)
"""A test that cannot tell a stop from its own work: no other process has the core."""

LOOK_S = 0.2
"""Seconds from one look for new test processes to the next."""


def running_tests(pytest: psutil.Process) -> set[int]:
    """Ids of the processes in which tests run; what they start is not among them."""
    watcher = child_processes.__file__
    return {child.pid for child in pytest.children() if watcher not in child.cmdline()}


class Stops:
    """The stops of several processes, drawn by one seed."""

    def __init__(self, seed: int) -> None:
        """Begin without any process."""
        self.count = 0
        self._chance = random.Random(seed)
        self._added: set[int] = set()
        self._due: list[tuple[float, int, bool]] = []  # when, of whom, whether it runs then

    def add(self, processes: set[int]) -> None:
        """Stop these, too, from now on."""
        for process in sorted(processes - self._added):
            self._added.add(process)
            self._next(process, runs=True)

    def go_on(self) -> None:
        """Stop and continue what is due, and wait a little."""
        while self._due and self._due[0][0] <= time.monotonic():
            _, process, runs = heapq.heappop(self._due)
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP if runs else signal.SIGCONT)
                self.count += runs
                self._next(process, runs=not runs)
        time.sleep(0.001)

    def end(self) -> None:
        """Let all processes run."""
        for _, process, _ in self._due:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)

    def _next(self, process: int, *, runs: bool) -> None:
        span = RUNS_S
        if not runs:
            [span] = self._chance.choices(list(STOPPED_S), list(STOPPED_S.values()))
        seconds = self._chance.uniform(*span)
        heapq.heappush(self._due, (time.monotonic() + seconds, process, runs))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=6, help="test processes side by side")
    parser.add_argument("pytest", nargs="*", help="further arguments of pytest, after --")


def run(options: argparse.Namespace) -> dict[str, Any]:
    stops, looked = Stops(options.seed), 0.0
    command = [sys.executable, "-m", "pytest", "-n", str(options.workers)]
    command += ["--no-loadscope-reorder", "--deselect", MEASURES, *options.pytest]
    with subprocess.Popen(command, cwd=ROOT) as suite:
        try:
            while suite.poll() is None:
                if time.monotonic() - looked > LOOK_S:
                    with suppress(psutil.NoSuchProcess):
                        stops.add(running_tests(psutil.Process(suite.pid)))
                    looked = time.monotonic()
                stops.go_on()
        finally:
            stops.end()
    code = suite.returncode
    return {"stops": stops.count, "broken": [f"pytest ended with {code}"] if code else []}
