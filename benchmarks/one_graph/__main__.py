"""The trial beside the present engine and ONNX Runtime, in turns, each in a process of its own.

    python -m benchmarks.one_graph squeezenet.onnx bert_base.onnx --rounds 12 --out FOLDER

``python -m benchmarks.networks.export squeezenet`` and ``benchmarks.shapes.encoders bert_base``
write the files. For each model: seconds from the file, and from what is kept of it, to the first
answers of a new process; latency of one run at each shape; memory (PSS) of each process.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.contender_process import ContenderProcess
from benchmarks.environment import describe
from benchmarks.one_graph.contender import WAYS
from benchmarks.planned import imported
from benchmarks.reports import parser_of, write_report
from braid.engine.processes.environment import cpu_environment

SHAPES: Mapping[str, Sequence[str]] = {
    "squeezenet": ["batch=1"],
    "bert_base": ["batch=1,length=32", "batch=1,length=128"],
}
OTHERS = "onnxruntime"


def started(way: str, model: Path, folder: Path) -> tuple[ContenderProcess, float]:
    """A process that has answered all shapes, and the seconds since its start."""
    command = [sys.executable, "-m", "benchmarks.one_graph.contender", way]
    command += [str(model), str(folder / way.split(",")[0]), *SHAPES[model.stem]]
    environment = dict(os.environ) if way == OTHERS else cpu_environment()
    if way.startswith("one graph"):  # as the executor pins its team
        environment |= {"OMP_PROC_BIND": "true", "OMP_PLACES": "threads"}
    began = time.monotonic()
    process = ContenderProcess(way, command, folder / f"{way}.log", environment)
    process.line(120.0)
    return process, time.monotonic() - began


def measure(model: Path, folder: Path, rounds: int, starts: int) -> dict[str, Any]:
    first_s, again_s = dict[str, float](), {way: list[float]() for way in WAYS}
    began = time.monotonic()
    asyncio.run(imported(model, folder / "present"))
    imported_s = time.monotonic() - began
    for way in ("one graph", "present", OTHERS):
        process, seconds = started(way, model, folder)
        first_s[way] = seconds + imported_s * (way == "present")
        process.end()
    for _ in range(starts):
        for way in WAYS:
            process, seconds = started(way, model, folder)
            again_s[way].append(seconds)
            process.end()
    with ExitStack() as stack:
        processes = {}
        for way in WAYS:
            processes[way], _ = started(way, model, folder)
            stack.callback(processes[way].end)
        shapes = SHAPES[model.stem]
        times_ms = {shape: {way: list[float]() for way in WAYS} for shape in shapes}
        order = list(WAYS)
        for number in range(rounds):
            for at, shape in enumerate(shapes):
                for way in order[number % len(order) :] + order[: number % len(order)]:
                    time.sleep(0.02)
                    times_ms[shape][way] += json.loads(processes[way].ask(f"run {at} 10", 60.0))
        memory_mib = {way: json.loads(process.ask("pss")) for way, process in processes.items()}
    return {
        "first_answer_s": first_s,
        "import_s": imported_s,
        "start_to_answer_s": {way: median(seconds) for way, seconds in again_s.items()},
        "pss_mib": memory_mib,
        "median_ms": {
            shape: {way: median(samples) for way, samples in of.items()}
            for shape, of in times_ms.items()
        },
    }


def main() -> None:
    parser = parser_of("benchmarks.one_graph", __doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder for one_graph.json")
    arguments = parser.parse_args()
    results = {}
    for model in arguments.models:
        folder = Path(tempfile.mkdtemp())
        try:
            results[model.stem] = measure(model, folder, arguments.rounds, arguments.starts)
        finally:
            shutil.rmtree(folder)
        print(model.stem, json.dumps(results[model.stem], indent=1), flush=True)
    if arguments.out is not None:
        document = {"environment": describe("torch", "onnxruntime"), "models": results}
        write_report(arguments.out / "one_graph.json", document)


if __name__ == "__main__":
    main()
