"""All attacks: ``python -m tests.attack --minutes 10``; writes JSON and exits with 1 for findings.

First every file, every message and every try from inside as the tables say, then random messages
for the minutes given, and until there were as many as asked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks import environment
from tests.attack.noise import Outcomes, Sender
from tests.attack.target import Target

FOLDER = Path(__file__).parent
DEFAULT_OUT = environment.REPOSITORY / "benchmarks" / "results" / "local" / "attack.json"
BATCH = 2000


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


def run_tables() -> Tables:
    """Run every case of every table, also those that take seconds."""
    tables = Tables()
    pytest.main(["-q", "-m", "not gpu", "-p", "no:cacheprovider", str(FOLDER)], plugins=[tables])
    return tables


async def run_noise(
    target: Target, outcomes: Outcomes, seconds: float, least: int, seed: int
) -> None:
    """Send random messages for so long, and at least so many; check after each batch."""
    sender = Sender(target, outcomes)
    deadline, most = time.monotonic() + seconds, outcomes.messages + least
    target.tracebacks()
    try:
        while time.monotonic() < deadline or outcomes.messages < most:
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


def noise(options: argparse.Namespace) -> Outcomes:
    """Send random messages to a server."""
    outcomes = Outcomes()
    seconds, least = 60 * options.minutes, options.messages
    with tempfile.TemporaryDirectory(prefix="braid-attack-") as name:
        target = Target.start(Path(name))
        try:
            asyncio.run(run_noise(target, outcomes, seconds, least, options.seed))
        finally:
            target.end()
    return outcomes


def row(outcomes: Outcomes) -> dict[str, object]:
    """The random messages in numbers."""
    statuses = Counter[str]()
    for (_, status), count in outcomes.counts.items():
        statuses[status] += count
    return {
        "messages": outcomes.messages,
        "calls": outcomes.counts.total(),
        "methods": len({path for path, _ in outcomes.counts}),
        "calls_by_status": dict(statuses.most_common()),
        "slowest_call_s": round(outcomes.slowest_s, 2),
        "findings": outcomes.findings,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all attacks and write what they came to."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack")
    parser.add_argument("--minutes", type=float, default=10.0, help="of random messages, at least")
    parser.add_argument("--messages", type=int, default=0, help="random ones, at least")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    parser.add_argument("--skip-tables", action="store_true", help="random messages only")
    options = parser.parse_args(arguments)
    logging.getLogger("grpc").setLevel(logging.CRITICAL)
    report: dict[str, object] = {
        "benchmark": "attack",
        "environment": environment.describe("grpcio", "protobuf", "torch", "onnx"),
        "seed": options.seed,
    }
    findings = 0
    if not options.skip_tables:
        tables = run_tables()
        report["cases"] = dict(tables.passed)
        report["cases_skipped"], report["cases_failed"] = tables.skipped, tables.failed
        findings += len(tables.failed)
    outcomes = noise(options)
    report["random_messages"] = row(outcomes)
    findings += len(outcomes.findings)
    report["findings"] = findings
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({name: report[name] for name in report if name != "environment"}, indent=1))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
