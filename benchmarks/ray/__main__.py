"""Run it: ``python -m benchmarks.ray --help``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import environment
from benchmarks.fleet.__main__ import table
from benchmarks.ray import campaigns, ingress
from benchmarks.ray.campaigns import CAMPAIGNS
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
    report: dict[str, Any] = {"environment": environment.describe(), "campaigns": {}}
    with tempfile.TemporaryDirectory(prefix="braid-ray-") as folder:
        named = [each for each in options.campaigns if each != INGRESS]
        if named:
            _campaigns(Path(folder) / "three", named, report)
        if INGRESS in options.campaigns:
            with _cluster(Path(folder) / "one", 1) as cluster:
                ingress.register(cluster, Path(folder))
                report[INGRESS] = ingress.measure(cluster)
            print(json.dumps(report[INGRESS], indent=2))
    print(table(report))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return int(any(campaign["broken"] for campaign in report["campaigns"].values()))


def _campaigns(folder: Path, names: list[str], report: dict[str, Any]) -> None:
    with _cluster(folder, 3) as cluster:
        campaigns.register(cluster, folder)
        for name in names:
            seen = CAMPAIGNS[name](cluster)
            print(f"{name}: {seen.figures}", *seen.broken, sep="\n  ", flush=True)
            report["campaigns"][name] = {
                "runs": 1,
                "figures": [seen.figures],
                "broken": seen.broken,
            }


@contextmanager
def _cluster(folder: Path, count: int) -> Iterator[Cluster]:
    """A cluster that serves, with what it stands on; off at the end."""
    folder.mkdir(parents=True)
    postgres = Postgres(folder / "postgres", [alone.HUB]).start()
    s3 = S3(folder / "s3", alone.HUB, S3_DISK_MB).start()
    redis = Redis(folder / "redis").start()
    try:
        with Cluster(folder / "machines", postgres, s3, redis, machines=count) as cluster:
            yield cluster.start()
    finally:
        redis.stop()
        s3.remove()
        postgres.remove()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray")
    choices = [*CAMPAIGNS, INGRESS]
    parser.add_argument(
        "campaigns", nargs="+", choices=choices, metavar="CAMPAIGN", help=", ".join(choices)
    )
    parser.add_argument("--json", type=Path, help="write all figures here (JSON)")
    parser.add_argument("--is-alone", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
