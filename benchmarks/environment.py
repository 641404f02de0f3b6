"""Where and when a benchmark ran: kept beside its numbers, since without it they mean nothing."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from braid.engine.cpu.core_distance import CoreProbe

REPOSITORY = Path(__file__).parents[1]


def describe(*packages: str) -> dict[str, object]:
    """JSON-ready facts about this host, this code and this run; versions of ``packages``.

    To be called before the run: ``load_average`` then tells what else the host was doing. Where a
    copy without its history runs, ``BRAID_COMMIT`` says which commit it is of.
    """
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]]),
        "commit": os.environ.get("BRAID_COMMIT") or _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "core_distance": core_distance(),
        "load_average": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
    }


def core_distance() -> dict[str, object]:
    """Which of this process's cores are near one another now, and round trips between them."""
    state = CoreProbe(sorted(os.sched_getaffinity(0))).look()
    return {"cores": state.name, "nearest_ns": state.least_ns, "farthest_ns": state.most_ns}


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
