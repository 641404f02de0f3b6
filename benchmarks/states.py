"""Rounds of a benchmark in one state of the machine's cores: near one another, or far.

    --state near|far   rounds are held in that state; one in which it changed is dropped and held
                       again
    --state both       everything is measured in one state, then in the other

The host of a virtual machine moves its cores, and what passes data between threads then takes up to
twice as long (docs/cpu.md). Without the option, rounds are held as the machine is.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from benchmarks.environment import core_distance
from braid.core.device_state import FAR, NEAR

BOTH = "both"

LOOK_S = 2.0
"""Seconds between two looks while the machine is in the other state."""

WAIT_S = 3600.0
"""Seconds to wait for a state, at most."""

T = TypeVar("T")


def present_state() -> str:
    """Name of the state that this process's cores are in now; empty: it cannot be told."""
    return str(core_distance()["cores"])


def add_state(parser: argparse.ArgumentParser) -> None:
    """Add ``--state``; without it the option is empty."""
    parser.add_argument(
        "--state",
        choices=(NEAR, FAR, BOTH),
        default="",
        help="hold rounds while cores are near one another, or far, or in both states by turns; "
        "rounds with a change are dropped",
    )


def by_state(options: argparse.Namespace, run: Callable[[argparse.Namespace], int]) -> int:
    """Run a benchmark, with ``--state both`` once in each state; returns the worst exit status.

    Then the state becomes a part of the paths of its results, ``out`` and ``json``.
    """
    if options.state != BOTH:
        wait_for(options.state)
        return run(options)
    worst = 0
    for state in (NEAR, FAR):
        in_one = copy.copy(options)
        in_one.state = state
        for name in ("out", "json"):
            if isinstance(path := getattr(options, name, None), Path):
                setattr(in_one, name, path_in_state(path, state))
        print(f"cores are {state}:", flush=True)
        wait_for(state)
        worst = max(worst, run(in_one))
    return worst


def path_in_state(path: Path, state: str) -> Path:
    """Path of a file, or of a folder, of results that belong to one state."""
    return path.with_stem(f"{path.stem}-{state}") if path.suffix else path / state


def in_state(
    state: str,
    hold: Callable[[], T],
    undo: Callable[[], object] = lambda: None,
    look: Callable[[], str] = present_state,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """Hold a round; where the machine was in another state before or after it, hold it again.

    Args:
        state: of the machine; empty: any.
        hold: holds the round.
        undo: takes back what a round did that does not count.
        look: tells the state.
        sleep: waits for so many seconds.
    """
    if not state:
        return hold()
    while True:
        wait_for(state, look, sleep)
        result = hold()
        if look() == state:
            return result
        undo()
        print(f"  a round is dropped: the cores were not {state} to its end", file=sys.stderr)


def wait_for(
    state: str,
    look: Callable[[], str] = present_state,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Wait until the machine is in a state; empty: do not wait.

    Raises:
        SystemExit: it was not in it for ``WAIT_S``.
    """
    waited_s = 0.0
    while state and look() != state:
        if waited_s >= WAIT_S:
            raise SystemExit(f"the cores were not {state} for {WAIT_S / 60:.0f} minutes")
        sleep(LOOK_S)
        waited_s += LOOK_S
