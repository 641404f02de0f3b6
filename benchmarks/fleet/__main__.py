"""Run it: ``python -m benchmarks.fleet --help``."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import environment
from benchmarks.fleet import following, outages, owners, registering, uploads
from benchmarks.fleet.stand import Findings, Stand
from benchmarks.reports import cases_parser, write_report
from tests.child_processes import kill_children_at_exit
from tests.fleet import alone, fleet
from tests.fleet.fleet import THREADS, Fleet
from tests.fleet.machine import Machine
from tests.fleet.postgres import Postgres
from tests.fleet.s3 import S3

Report = dict[str, dict[str, Any]]
"""By campaign: ``environments`` of the commands, ``runs``, ``seconds``, ``figures``, ``broken``."""

S3_DISK_MB = 2048
SKEWS = (60, -60, 0)


@dataclass(frozen=True, slots=True)
class Campaign:
    """One run, and the fleet that it has."""

    run: Callable[[Stand, Fleet, random.Random], Findings]
    is_alone: bool = False  # each run has a fleet of its own; else all share one
    threads: tuple[int, ...] = THREADS
    skews: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def runs(self, stand: Stand, times: int, chance: random.Random) -> Iterator[Findings]:
        for _ in range(times if self.is_alone else 1):
            with stand.fleet(self.threads, self.skews, self.environment) as fleet:
                for _ in range(1 if self.is_alone else times):
                    yield self.run(stand, fleet, chance)


def plain(run: Callable[[Stand, Fleet], Findings], *, is_alone: bool = False) -> Campaign:
    """Campaign without chance, in a usual fleet."""
    return Campaign(lambda stand, fleet, _: run(stand, fleet), is_alone)


def killed_in(state: str, skews: tuple[int, ...] = ()) -> Campaign:
    """Campaign that kills owners in one state of a job."""
    return Campaign(partial(owners.killed, state=state), skews=skews)


CAMPAIGNS: dict[str, Campaign] = {
    "keys": plain(registering.keys_once),
    "versions": Campaign(
        lambda stand, fleet, _: registering.versions(stand, fleet), True, (1, 1, 2, 2)
    ),
    **{f"kill-{state.lower()}": killed_in(state) for state in owners.STATES},
    "kill-upload": Campaign(uploads.killed, environment=uploads.SWEPT_SOON),
    "pause": Campaign(partial(owners.away, leave=Machine.pause, come=Machine.resume)),
    "partition": Campaign(partial(owners.away, leave=Machine.unplug, come=Machine.replug)),
    "skew": Campaign(lambda stand, fleet, _: registering.keys_once(stand, fleet), skews=SKEWS),
    "skew-kill": killed_in("PROFILING", SKEWS),
    "follow": plain(following.schedules),
    "follow-deaf": plain(partial(following.schedules, is_notified=False), is_alone=True),
    "postgres-away": plain(outages.postgres_away),
    "s3-away": plain(outages.s3_away),
    "s3-full": plain(outages.s3_full),
    "restarts": plain(following.restarts, is_alone=True),
    "identical": plain(following.identical),
    "silence": Campaign(
        lambda stand, fleet, _: following.silence(stand, fleet), True, (1,), (), following.STILL
    ),
}


def main() -> int:
    """Run campaigns; the exit status is 1 if anything was seen that must not be."""
    options = _options()
    if why := alone.missing():
        if options.is_alone:
            sys.exit(why)
        again = [sys.executable, "-m", "benchmarks.fleet", "--is-alone", *sys.argv[1:]]
        alone.run(again)
    if why := fleet.missing():
        sys.exit(why)
    kill_children_at_exit()
    report = _stored(options.json)
    with tempfile.TemporaryDirectory(prefix="braid-fleet-") as folder:
        _run_all(Path(folder), options, report)
    print(table(report))
    return int(any(campaign["broken"] for campaign in report.values()))


def _run_all(folder: Path, options: argparse.Namespace, report: Report) -> None:
    postgres = Postgres(folder / "postgres", [alone.HUB]).start()
    s3 = S3(folder / "s3", alone.HUB, S3_DISK_MB).start()
    try:
        stand = Stand(folder, postgres, s3)
        for name in options.cases:
            _run(name, stand, options, report)
    finally:
        s3.remove()
        postgres.remove()


def _run(name: str, stand: Stand, options: argparse.Namespace, report: Report) -> None:
    """Add the figures of each run, and all that must not have been; stored after each."""
    empty: dict[str, Any] = {"environments": [], "runs": 0, "seconds": 0, "figures": []}
    campaign = report.setdefault(name, empty | {"broken": []})
    campaign["environments"].append(environment.describe() | {"note": options.note})
    chance = random.Random(f"{options.seed} {name}")
    before, began = campaign["seconds"], time.monotonic()
    for findings in CAMPAIGNS[name].runs(stand, options.times, chance):
        campaign["runs"] += 1
        campaign["seconds"] = before + round(time.monotonic() - began)
        campaign["figures"].append(findings.figures)
        campaign["broken"] += findings.broken
        print(
            f"{name} {campaign['runs']}: {findings.figures}",
            *findings.broken,
            sep="\n  ",
            flush=True,
        )
        write_report(options.json, report)


def _stored(file: Path | None) -> Report:
    """Runs of former commands with the same file."""
    if file is None or not file.exists():
        return {}
    stored: Report = json.loads(file.read_text())
    return stored


def table(report: Report) -> str:
    """Markdown: a row for each campaign, figures as least to most."""
    lines = ["| campaign | runs | figures, least to most | broken |", "|---|---|---|---|"]
    for name, campaign in report.items():
        names = dict.fromkeys(key for figures in campaign["figures"] for key in figures)
        shown = [
            _span(key, [run[key] for run in campaign["figures"] if key in run]) for key in names
        ]
        broken = len(campaign["broken"])
        lines.append(f"| {name} | {campaign['runs']} | {'; '.join(shown)} | {broken} |")
    return "\n".join(lines)


def _span(name: str, values: list[float | int | str]) -> str:
    if any(isinstance(value, str) for value in values):
        return f"{name}: {', '.join(sorted({str(value) for value in values}))}"
    least, most = min(values), max(values)
    return f"{name}: {least}" + (f" to {most}" if most != least else "")


def _options() -> argparse.Namespace:
    parser = cases_parser("benchmarks.fleet", CAMPAIGNS)
    parser.description = "Figures are added to those that the file of --json has."
    parser.add_argument("--times", type=int, default=1, help="runs of each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--note", default="", help="what else the machine did, for the JSON")
    parser.add_argument("--is-alone", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
