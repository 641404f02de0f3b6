"""Run it: ``python -m tests.chaos --help``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks import environment
from tests.chaos.campaign import Campaign
from tests.child_processes import kill_children_at_exit


def main() -> int:
    """Run a campaign; the exit status is 1 if anything was seen that must not be."""
    kill_children_at_exit()
    options = _options()
    if options.sum:
        seen = added(options.sum)
    else:
        facts = environment.describe()
        with tempfile.TemporaryDirectory(prefix="braid-chaos-") as folder:
            campaign = Campaign(Path(folder), options)
            try:
                campaign.run()
            finally:
                if options.keep_logs is not None:
                    campaign.keep_logs(options.keep_logs)
        seen = {"environment": facts, **result(campaign, options)}
    print("\n".join(table(seen)))
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(seen, indent=2) + "\n")
    return 1 if seen["broken"] else 0


def result(campaign: Campaign, options: argparse.Namespace) -> dict[str, Any]:
    """What was seen, ready for JSON."""
    return {
        "seed": options.seed,
        "minutes": options.minutes,
        "left out": campaign.missing,
        "kills": dict(campaign.blows.killed),
        "blows": dict(campaign.blows.struck),
        "calls": dict(campaign.tally.outcomes),
        "jobs": dict(campaign.registrations.ended),
        "reasons of jobs": dict(campaign.registrations.reasons),
        "front ends started": campaign.starts,
        "calms": campaign.calms,
        "longest time without an answer, s": round(campaign.tally.longest_gap_s, 1),
        "most further descriptors of a process": campaign.descriptors.most_more,
        "broken": dict(campaign.broken),
        "tracebacks": campaign.tracebacks,
    }


_COUNTS = ("kills", "blows", "calls", "jobs", "reasons of jobs", "broken")
_SUMS = ("minutes", "front ends started", "calms")
_LARGEST = ("longest time without an answer, s", "most further descriptors of a process")


def added(files: list[Path]) -> dict[str, Any]:
    """Several results as one."""
    parts = [json.loads(file.read_text()) for file in files]
    seen: dict[str, Any] = {
        "environment": [part["environment"] for part in parts],
        "seed": [part["seed"] for part in parts],
    }
    for what in _COUNTS:
        seen[what] = dict(sum((Counter(part[what]) for part in parts), Counter()))
    seen["tracebacks"] = {k: v for part in parts for k, v in part.get("tracebacks", {}).items()}
    for what in _SUMS:
        seen[what] = sum(part[what] for part in parts)
    for what in _LARGEST:
        seen[what] = max(part[what] for part in parts)
    return seen


def table(seen: dict[str, Any]) -> list[str]:
    """A result as lines of Markdown."""
    lines = ["| | |", "|---|---|"]
    for what, found in seen.items():
        if what in ("environment", "tracebacks"):
            continue
        if isinstance(found, dict):
            found = ", ".join(f"{name} {count}" for name, count in sorted(found.items())) or "none"
        lines.append(f"| {what} | {found} |")
    return lines


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--pause-ms", type=float, default=20.0, help="of a client between calls")
    parser.add_argument("--mean-seconds", type=float, default=0.3, help="between two blows")
    parser.add_argument("--round", type=int, default=80, help="blows before each calm")
    parser.add_argument("--out", type=Path, help="write what was seen here, too (JSON)")
    parser.add_argument("--keep-logs", type=Path, metavar="DIR", help="copy the server's logs here")
    parser.add_argument("--sum", type=Path, nargs="+", metavar="FILE", help="only add results up")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
