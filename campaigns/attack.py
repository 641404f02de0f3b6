"""All attacks: every case of the tables of tests/attack, then random messages for minutes."""

from __future__ import annotations

import argparse
import asyncio
import logging
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from campaigns.noise import Outcomes, Sender
from tests import ROOT
from tests.attack.target import Target

BATCH = 2000


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=0, help="random ones, at least")
    parser.add_argument("--skip-tables", action="store_true", help="random messages only")


def run(options: argparse.Namespace) -> dict[str, Any]:
    logging.getLogger("grpc").setLevel(logging.CRITICAL)
    tables = Tables()
    if not options.skip_tables:  # all cases, also those that take seconds
        where = ["-p", "no:cacheprovider", str(ROOT / "tests/attack")]
        pytest.main(["-q", "-m", "not gpu", *where], plugins=[tables])
    outcomes = noise(options)
    statuses = Counter[str]()
    for (_, status), count in outcomes.counts.items():
        statuses[status] += count
    return {
        "cases": dict(tables.passed),
        "cases skipped": tables.skipped,
        "random messages": {
            "messages": outcomes.messages,
            "calls": outcomes.counts.total(),
            "methods": len({path for path, _ in outcomes.counts}),
            "calls by status": dict(statuses.most_common()),
            "slowest call, s": round(outcomes.slowest_s, 2),
        },
        "broken": [*tables.failed, *outcomes.findings],
    }


@dataclass
class Tables:
    """Counts the cases of the tables as pytest runs them."""

    passed: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    failed: list[str] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the end of one case."""
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed[report.nodeid.partition("::")[0].rpartition("/")[2]] += 1
        elif report.skipped:
            self.skipped += 1


def noise(options: argparse.Namespace) -> Outcomes:
    """Send random messages to a server of their own."""
    outcomes = Outcomes()
    with tempfile.TemporaryDirectory(prefix="braid-attack-") as name:
        target = Target.start(Path(name))
        try:
            asyncio.run(_send(target, outcomes, options))
        finally:
            target.end()
    return outcomes


async def _send(target: Target, outcomes: Outcomes, options: argparse.Namespace) -> None:
    """Send for so long, and at least so many; check after each batch."""
    sender, seed = Sender(target, outcomes), options.seed
    deadline = time.monotonic() + 60 * options.minutes
    target.tracebacks()
    try:
        while time.monotonic() < deadline or outcomes.messages < options.messages:
            await sender.send(range(seed, seed + BATCH))
            seed += BATCH
            outcomes.findings += [f"log: {text}" for text in target.tracebacks()]
            try:
                await asyncio.to_thread(target.check)
            except AssertionError as error:
                outcomes.findings.append(f"after seed {seed}: {error}")
            if len(outcomes.findings) > 20:
                break
            print(f"{outcomes.messages} messages, {len(outcomes.findings)} findings", flush=True)
    finally:
        await sender.close()
