"""Run it: ``python -m benchmarks.ray --help``."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import environment
from benchmarks.fleet.__main__ import Report, table
from benchmarks.fleet.stand import Findings
from benchmarks.ray import campaigns, ingress
from benchmarks.ray.campaigns import CAMPAIGNS
from benchmarks.reports import cases_parser, write_report
from tests.child_processes import kill_children_at_exit
from tests.fleet import alone
from tests.fleet.postgres import Postgres
from tests.fleet.s3 import S3
from tests.ray import cluster as machines
from tests.ray.cluster import Cluster
from tests.ray.redis import Redis

S3_DISK_MB = 2048
INGRESS = "ingress"


def main() -> int:
    """Run what is named; the exit status is 1 if anything was seen that must not be."""
    options = _options()
    if why := alone.missing():
        if options.is_alone:
            sys.exit(why)
        alone.run([sys.executable, "-m", "benchmarks.ray", "--is-alone", *sys.argv[1:]])
    if why := machines.missing() or Redis.missing():
        sys.exit(why)
    kill_children_at_exit()
    facts, report = environment.describe("ray"), Report()
    with tempfile.TemporaryDirectory(prefix="braid-ray-") as folder:
        for name, findings in _findings(Path(folder), options):
            findings.figures["load average after it"] = round(os.getloadavg()[0], 1)
            print(f"{name}: {findings.figures}", *findings.broken, sep="\n  ", flush=True)
            campaign = report.setdefault(name, {"runs": 0, "figures": [], "broken": []})
            campaign["runs"] += 1
            campaign["figures"].append(findings.figures)
            campaign["broken"] += findings.broken
            write_report(options.json, {"environment": facts, "campaigns": report})
    print(table(report))
    return int(any(campaign["broken"] for campaign in report.values()))


def _findings(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Findings]]:
    """Run the cases, on a cluster for all campaigns and one each for the others."""
    if named := [case for case in options.cases if case in CAMPAIGNS]:
        with _cluster(folder / "campaigns", 3) as cluster:
            campaigns.register(cluster.start(), folder)
            for name in named:
                yield name, CAMPAIGNS[name](cluster)
    if INGRESS in options.cases:
        with _cluster(folder / INGRESS, 1) as cluster:
            ingress.register(cluster.start(), folder)
            yield INGRESS, ingress.measure(cluster)


@contextmanager
def _cluster(folder: Path, count: int) -> Iterator[Cluster]:
    """A cluster, off, with what it stands on; off at the end."""
    folder.mkdir(parents=True)
    postgres = Postgres(folder / "postgres", [alone.HUB]).start()
    s3 = S3(folder / "s3", alone.HUB, S3_DISK_MB).start()
    redis = Redis(folder / "redis").start()
    try:
        with Cluster(folder / "machines", postgres, s3, redis, machines=count) as cluster:
            yield cluster
    finally:
        redis.stop()
        s3.remove()
        postgres.remove()


def _options() -> argparse.Namespace:
    parser = cases_parser("benchmarks.ray", [*CAMPAIGNS, INGRESS])
    parser.description = "A campaign that is named several times runs as often, on one cluster."
    parser.add_argument("--is-alone", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
