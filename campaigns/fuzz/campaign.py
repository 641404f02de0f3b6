"""Fuzzers, the minutes of each: graphs, mutations of model files, bytes of HTTP/2.

Each finding is printed with what makes it again.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parent / "corpus"

Report = Callable[[str], None]


def add_options(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(FUZZERS)
    parser.add_argument("fuzzers", nargs="*", metavar="FUZZER", help=f"default: {names}")


def run(options: argparse.Namespace) -> dict[str, Any]:
    broken: list[str] = []

    def report(finding: str) -> None:
        print(f"FINDING: {finding}", flush=True)
        broken.append(finding)

    seconds, counts = 60 * options.minutes, {}
    for name in options.fuzzers or FUZZERS:
        counts[name] = dict(FUZZERS[name](seconds, options.seed, report))
    return {**counts, "broken": broken}


def fuzz_graphs(seconds: float, first_seed: int, report: Report) -> Counter[str]:
    """Compare random graphs with ONNX Runtime."""
    import torch
    from hypothesis import HealthCheck, Phase, given, seed, settings

    from braid.engine.cpu.executor import CpuExecutor
    from campaigns.fuzz.compare import disagreement
    from campaigns.fuzz.graphs import models

    executor = CpuExecutor(threads=1)
    torch.set_num_threads(1)
    count = Counter[str]()
    deadline = time.monotonic() + seconds
    for number in range(first_seed, sys.maxsize):
        if time.monotonic() > deadline:
            break

        @seed(number)
        @settings(
            max_examples=200,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        )
        @given(models())
        def agree(model: Any) -> None:
            difference = disagreement(model, executor)
            count["compared"] += 1
            assert not difference, (
                f"{difference}\n{base64.b64encode(model.SerializeToString()).decode()}"
            )

        try:
            agree()
        except AssertionError as error:
            report(f"graphs (seed {number}): {error}")
    return count


def fuzz_mutations(seconds: float, first_seed: int, report: Report) -> Counter[str]:
    """Import damaged files, confined."""
    import torch

    from campaigns.fuzz.forked import run_importer
    from campaigns.fuzz.mutations import mutated

    torch.set_num_threads(1)  # a fork copies no threads
    deadline = time.monotonic() + seconds
    kinds, odd = Counter[str](), Counter[str]()
    for number, file in _turns(first_seed):
        if time.monotonic() > deadline:
            break
        outcome = run_importer(mutated(file.read_bytes(), number))
        kinds[outcome.kind] += 1
        if outcome.kind in ("odd", "contained"):
            odd[f"{outcome.kind}: {outcome.detail[:150]}"] += 1
        if outcome.is_finding:
            report(f"mutations: {outcome.kind} ({file.name}, seed {number}): {outcome.detail}")
    return kinds + Counter(dict(odd.most_common(20)))


def fuzz_http2(seconds: float, first_seed: int, report: Report) -> Counter[str]:
    """Send damaged bytes of clients to the server of HTTP/2, half of the time with TLS."""
    from campaigns.fuzz.http2 import attacked

    async def attack() -> int:
        number = first_seed
        for tls in (False, True):
            deadline = time.monotonic() + seconds / 2
            async with attacked(tls=tls) as target:
                while time.monotonic() < deadline and not target.findings:
                    number += 1
                    await target.attack(number)
                    if number % 50 == 0:
                        await target.check()
                await target.check()
                for finding in target.findings:
                    report(f"http2 (up to seed {number}): {finding}")
        return number

    return Counter(connections=asyncio.run(attack()) - first_seed)


FUZZERS: Mapping[str, Callable[[float, int, Report], Counter[str]]] = {
    "graphs": fuzz_graphs,
    "mutations": fuzz_mutations,
    "http2": fuzz_http2,
}
"""Name -> what runs for some seconds from a seed on, and counts what it did."""


def _turns(first_seed: int) -> Iterator[tuple[int, Path]]:
    files = sorted(path for path in CORPUS.iterdir() if path.suffix in (".onnx", ".pt2", ".zip"))
    for number in range(first_seed, sys.maxsize):
        yield number, random.Random(number).choice(files)
