"""Latencies of batches of a network on one core, stored and measured.

    python -m benchmarks.fleet.simulate.tables NAME=MODEL.onnx ... --json FILE

A latency is the least of some runs of ONNX Runtime on one thread, in CPU seconds. Counted so, other
work on the machine does not add to it.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.environment import REPOSITORY, describe
from benchmarks.reports import write_report

FILE = REPOSITORY / "benchmarks/results/intel-xeon-2core-2026-11-23/batches-on-one-core.json"
BATCH_SIZES = (1, 2, 4, 8)
RUNS = 10


def latency_table(network: str) -> dict[int, float]:
    by_rows = json.loads(FILE.read_text())["networks"][network]
    return {int(rows): float(us) for rows, us in by_rows.items()}


def measured(model: Path) -> dict[int, float]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model), options, ["CPUExecutionProvider"])
    [given] = session.get_inputs()
    by_rows: dict[int, float] = {}
    for rows in BATCH_SIZES:
        x = {given.name: np.zeros((rows, *given.shape[1:]), np.float32)}
        session.run(None, x)
        by_rows[rows] = min(_cpu_us(session, x) for _ in range(RUNS))
    return by_rows


def _cpu_us(session: onnxruntime.InferenceSession, x: dict[str, np.ndarray]) -> float:
    began = time.process_time_ns()
    session.run(None, x)
    return (time.process_time_ns() - began) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet.simulate.tables")
    parser.add_argument("models", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    report = {"environment": describe("onnxruntime"), "networks": {}}
    for model in options.models:
        name, _, file = model.partition("=")
        report["networks"] |= {name: measured(Path(file))}
        print(name, report["networks"][name], flush=True)
    write_report(options.json, report)


if __name__ == "__main__":
    main()
