"""Memory of plans of several batch sizes: own kernels, whole engines, and parts in engines.

    python -m benchmarks.part_memory detr_like [--sizes 1 2 8] [--out FILE]

Each contender prepares its plans in a process of its own, as a worker does, and runs each once. The
figure is the private memory of the process beyond that before the model was loaded. A mixed plan
has own kernels up to the last convolution, and one part in an engine for all that follows.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.networks.export import export_onnx
from braid.core.plan import EnginePart, Launch, StreamPlan
from braid.core.program import PlanToRun, ProgramKey
from braid.engine.cpu.backend import CpuBackend
from braid.engine.cpu.engines import ENGINES, installed_engines
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.importer.host.report import read_report
from braid.engine.worker.models import ModelTable, seeded_inputs, with_rows
from braid.scheduler.regions import borders
from tests.engine.importer.running import import_here

KIB = 1024


def private_bytes() -> int:
    """Memory of this process that no other one shares, what its heap keeps free aside."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    text = Path("/proc/self/smaps_rollup").read_text()
    return sum(int(size) for size in re.findall(r"Private_\w+: +(\d+) kB", text)) * KIB


def contenders() -> Iterator[str]:
    yield "own"
    for engine in installed_engines():
        yield from (engine, f"own+{engine}")


def measure(artefact: Path, name: str, sizes: Sequence[int]) -> list[dict[str, int]]:
    """Private memory, and what Braid counts, after the plan of each size."""
    digest, runtime = read_report(artefact).sha256, "" if name.startswith("own") else name
    backend = CpuBackend(CpuExecutor(threads=2))
    table = ModelTable(backend)
    before = private_bytes()
    table.load(digest, artefact)
    rows = []
    for number, size in enumerate(sizes):
        inputs = table.model(digest).template.inputs.items()
        key = ProgramKey(digest, tuple((given, with_rows(spec, size)) for given, spec in inputs))
        plan = mixed_plan(table, key, name.partition("+")[2]) if "+" in name else None
        ready = table.executable_of(PlanToRun(key, plan, runtime=runtime), None)
        table.prepare(number, [ready])
        tensors = seeded_inputs(ready.program.graph, {}, 0)
        if ready.session is None:
            ready.prepared.run(tensors)
        else:
            ready.session.run(tensors)
        memory = table.memory(digest, ready)
        counted = memory.host_weights + memory.activations + memory.sessions
        rows.append({"size": size, "bytes": private_bytes() - before, "counted": counted})
    backend.close()
    return rows


def mixed_plan(table: ModelTable, key: ProgramKey, engine: str) -> StreamPlan:
    graph = table.program(key).graph
    last = max(at for at, unit in enumerate(graph.operators) if "convolution" in unit.kind)
    first = min(at for at in borders(graph, graph.sources) if at > last)
    part = EnginePart(tuple(range(first, len(graph))), engine, ENGINES[engine].version, 2)
    return StreamPlan(tuple(Launch(unit, 0) for unit in range(len(graph))), 1, parts=(part,))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.part_memory")
    parser.add_argument("network")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--out", type=Path, help="write the figures here, too (JSON)")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.only:
        print(json.dumps(measure(Path(options.network), options.only, options.sizes)))
        return 0
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        model = export_onnx(options.network, Path(folder) / "model.onnx")
        artefact = import_here(model, Path(folder) / "artefact")
        print(
            f"{options.network}: a file of {model.stat().st_size / 1e6:.1f} MB; MB after each size"
        )
        for name in contenders():
            command = [
                sys.executable,
                "-m",
                "benchmarks.part_memory",
                str(artefact),
                "--only",
                name,
            ]
            command += ["--sizes", *map(str, options.sizes)]
            ran = subprocess.run(command, check=True, capture_output=True, text=True)
            results[name] = json.loads(ran.stdout.splitlines()[-1])
            row = [
                f"{x['size']}: {x['bytes'] / 1e6:.1f} ({x['counted'] / 1e6:.1f} counted)"
                for x in results[name]
            ]
            print(f"{name:20}", "  ".join(row), flush=True)
    if options.out:
        options.out.write_text(json.dumps(results, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
