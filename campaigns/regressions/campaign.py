"""Faults that were found once: each is shown from outside, and must be mended."""

from __future__ import annotations

import argparse
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from campaigns.regressions.scripts import run as run_script
from campaigns.regressions.scripts import script_names
from tests import ROOT


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(script_names()))
    parser.add_argument("--times", type=int, default=1, help="runs of each (default: 1)")
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout whose server is tested")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run scripts one after the other.

    Raises:
        ValueError: there is no script of a name.
    """
    if unknown := set(options.names) - set(script_names()):
        raise ValueError(f"no such script: {', '.join(sorted(unknown))}")
    seconds, broken = {}, []
    for name in options.names or script_names():
        for turn in range(1, options.times + 1):
            script, began = f"{name} {turn}/{options.times}", time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                try:
                    run_script(name, Path(folder), options.tree)
                except Exception:  # the next script may pass
                    broken.append(f"{script}: {traceback.format_exc()}")
            seconds[script] = round(time.monotonic() - began, 1)
    return {"seconds": seconds, "broken": broken}
