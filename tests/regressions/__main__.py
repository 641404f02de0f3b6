"""Run the scripts: ``python -m tests.regressions --help``."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests import ROOT
from tests.child_processes import kill_children_at_exit
from tests.regressions.scripts import run, script_names


def main() -> int:
    """Run scripts one after the other; the exit status is the number of failed runs."""
    options = _options()
    kill_children_at_exit()
    failed = 0
    for name in options.names or script_names():
        for turn in range(options.times):
            began = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                try:
                    run(name, Path(folder), options.tree)
                except Exception:  # the next script may pass
                    failed += 1
                    traceback.print_exc()
                    outcome = "FAILED"
                else:
                    outcome = "passed"
            print(f"{name} {turn + 1}/{options.times}: {outcome}, {time.monotonic() - began:.1f} s")
    return failed


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.regressions", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(script_names()))
    parser.add_argument("--times", type=int, default=1, help="runs of each (default: 1)")
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout whose server is tested")
    options = parser.parse_args()
    if unknown := set(options.names) - set(script_names()):
        parser.error(f"no such script: {', '.join(sorted(unknown))}")
    return options


if __name__ == "__main__":
    sys.exit(main())
