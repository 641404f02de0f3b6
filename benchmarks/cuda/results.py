"""Results of the benchmark on a GPU: tables, ``cuda.json``, and reading an earlier run.

    python -m benchmarks.cuda.results FOLDER/cuda.json

prints the tables of a run again.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import quantiles

from benchmarks.cuda.record import CudaCase, goals, ratios
from benchmarks.reports import write_report

FILE = "cuda.json"


def print_case(case: CudaCase) -> None:
    print(f"\n{case.network}, batch {case.batch}: milliseconds on the GPU, end to end")
    best = case.median_ms(case.winner)
    for name in sorted(case.gpu_ms, key=case.median_ms):
        samples = case.gpu_ms[name]
        lower, _, upper = quantiles(samples * 2, n=4, method="inclusive")
        ms, total_ms = case.median_ms(name), case.median_ms(name, "total")
        mark = " <- serves" if name == case.portfolio else ""
        print(
            f"  {name:52} {ms:9.3f} {total_ms:9.3f} {ms / best:6.2f}x"
            f"  ({lower:.3f} to {upper:.3f}, {len(samples)} runs){mark}"
        )
    for name, why in case.failed.items():
        print(f"  {name:52} did not run: {why[:120]}")
    if case.scheduling:
        print("  scheduling:", ", ".join(f"{k} {v:.1f}" for k, v in case.scheduling.items()))


def print_summary(cases: Sequence[CudaCase], left_out: Sequence[str]) -> None:
    """Ratios by batch size, the goals, and what there was no time for."""
    for batch in sorted({case.batch for case in cases}):
        print(f"\nbatch {batch}: how many times as fast the portfolio's plan is, on the GPU")
        for rival, values in ratios(cases, batch, "gpu").items():
            measured = {name: ratio for name, ratio in values.items() if not math.isnan(ratio)}
            text = ", ".join(f"{name} {ratio:.2f}" for name, ratio in measured.items())
            print(f"  {rival:24} {text or 'not seen'}")
    print("\ngoals, at batch 1:")
    for goal in goals(cases):
        print(f"  {goal.text}: {goal.measured:.2f} (goal {goal.least:g}): {goal.verdict}")
    for text in left_out:
        print(f"left out, no time: {text}")


def write(
    cases: Sequence[CudaCase],
    environment: Mapping[str, object],
    left_out: Sequence[str],
    folder: Path,
) -> None:
    batches = sorted({case.batch for case in cases})
    document = {
        "environment": environment,
        "cases": [
            asdict(case)
            | {
                "median_gpu_ms": {name: case.median_ms(name) for name in case.gpu_ms},
                "median_total_ms": {name: case.median_ms(name, "total") for name in case.total_ms},
            }
            for case in cases
        ],
        "ratios_gpu": {batch: ratios(cases, batch, "gpu") for batch in batches},
        "ratios_end_to_end": {batch: ratios(cases, batch, "total") for batch in batches},
        "goals": [asdict(goal) | {"verdict": goal.verdict} for goal in goals(cases)],
        "left_out": list(left_out),
    }
    write_report(folder / FILE, _without_nan(document))


def same_setting(path: Path, environment: Mapping[str, object]) -> bool:
    """Whether an earlier run was of the same device, software and precision."""
    earlier = json.loads(path.read_text())["environment"]
    return all(earlier.get(fact) == environment[fact] for fact in ("device", "precision"))


def read(path: Path) -> list[CudaCase]:
    slots = set(CudaCase.__slots__)
    return [
        CudaCase(**{name: value for name, value in document.items() if name in slots})
        for document in json.loads(path.read_text())["cases"]
    ]


def _without_nan(value: object) -> object:
    match value:
        case dict():
            return {str(key): _without_nan(part) for key, part in value.items()}
        case list() | tuple():
            return [_without_nan(part) for part in value]
        case float() if not math.isfinite(value):
            return None
    return value


if __name__ == "__main__":
    path = Path(sys.argv[1])
    measured = read(path)
    for one in measured:
        print_case(one)
    print_summary(measured, json.loads(path.read_text())["left_out"])
