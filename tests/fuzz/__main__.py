"""Run the fuzzers, graphs, mutations and http2: ``python -m tests.fuzz --minutes 10 [NAME...]``.

Exits with 1 if there are findings; each is printed with what makes it again.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def fuzz_graphs(seconds: float, first_seed: int) -> int:
    """Random graphs against ONNX Runtime; how many disagree."""
    import torch
    from hypothesis import HealthCheck, Phase, given, seed, settings

    from braid.engine.cpu.executor import CpuExecutor
    from tests.fuzz.compare import disagreement
    from tests.fuzz.graphs import models

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
        def agree(model: object) -> None:
            found = disagreement(model, executor)  # type: ignore[arg-type]
            count["compared"] += 1
            assert not found, found + "\n" + base64.b64encode(model.SerializeToString()).decode()  # type: ignore[attr-defined]

        try:
            agree()
        except AssertionError as error:
            count["findings"] += 1
            print(f"FINDING (seed {number}): {error}", flush=True)
    print(f"graphs: {count['compared']} compared, {count['findings']} findings")
    return count["findings"]


def fuzz_mutations(seconds: float, first_seed: int) -> int:
    """Damaged files through the confined importer; how many findings."""
    import torch

    from tests.fuzz.forked import run_importer
    from tests.fuzz.mutations import mutated

    torch.set_num_threads(1)  # a fork copies no threads
    deadline = time.monotonic() + seconds
    count = Counter[str]()
    odd = Counter[str]()
    findings = 0
    for number, file in _turns(first_seed):
        if time.monotonic() > deadline:
            break
        outcome = run_importer(mutated(file.read_bytes(), number))
        count[outcome.kind] += 1
        if outcome.kind in ("odd", "contained"):
            odd[f"{outcome.kind}: {outcome.detail[:150]}"] += 1
        if outcome.is_finding:
            findings += 1
            print(
                f"FINDING: {outcome.kind} ({file.name}, seed {number}): {outcome.detail}",
                flush=True,
            )
    print(f"mutations: {sum(count.values())} imports, {dict(count)}, {findings} findings")
    for what, times in odd.most_common(20):
        print(f"  {times} x {what}")
    return findings


def fuzz_http2(seconds: float, first_seed: int) -> int:
    """Damaged bytes of clients to the server of HTTP/2; how many findings."""
    from tests.fuzz.http2 import attacked

    async def attack() -> tuple[int, list[str]]:
        number, findings = first_seed, list[str]()
        for tls in (False, True):  # half of the time each
            deadline = time.monotonic() + seconds / 2
            async with attacked(tls=tls) as target:
                while time.monotonic() < deadline and not target.findings:
                    number += 1
                    await target.attack(number)
                    if number % 50 == 0:
                        await target.check()
                await target.check()
                findings += target.findings
        return number, findings

    last, findings = asyncio.run(attack())
    for each in findings:
        print(f"FINDING: {each} (up to seed {last})", flush=True)
    print(f"http2: {last - first_seed} connections, {len(findings)} findings")
    return len(findings)


def _turns(first_seed: int) -> Iterator[tuple[int, Path]]:
    files = sorted(path for path in CORPUS.iterdir() if path.suffix in (".onnx", ".pt2", ".zip"))
    for number in range(first_seed, sys.maxsize):
        yield number, random.Random(number).choice(files)


def main() -> int:
    """Run what was asked for, the time shared between them."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("fuzzers", nargs="*", default=["graphs", "mutations", "http2"])
    parser.add_argument("--minutes", type=float, default=10.0, help="of each")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    known = {"graphs": fuzz_graphs, "mutations": fuzz_mutations, "http2": fuzz_http2}
    findings = [known[name](60 * options.minutes, options.seed) for name in options.fuzzers]
    return 1 if sum(findings) else 0


if __name__ == "__main__":
    sys.exit(main())
