"""One way to run a model, alone in its process; ``python -m benchmarks.one_graph`` starts them.

    python -m benchmarks.one_graph.contender WAY MODEL FOLDER batch=1,length=32 batch=1,length=128

Prints, once all shapes have answered, seconds by phase as JSON; then answers lines: ``run SHAPE
COUNT`` with milliseconds, ``pss`` with MiB. FOLDER holds the stored model, or the artefact.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

import numpy as np

from braid.core.tensor import TensorType

THREADS = 2
Extents = Mapping[str, int]
Feeds = dict[str, np.ndarray[Any, Any]]
Run = Callable[[], object]

INPUTS: Mapping[str, Sequence[tuple[str, Sequence[str | int], str]]] = {
    "squeezenet": [("image", ("batch", 3, 224, 224), "float32")],
    "bert_base": [
        ("input_ids", ("batch", "length"), "int64"),
        ("attention_mask", ("batch", "length"), "int64"),
    ],
}


def feeds_of(model: Path, extents: Extents) -> Feeds:
    """The same inputs in every process; the last tenth of a text is padding."""
    rng, feeds = np.random.default_rng(0), Feeds()
    for name, dims, dtype in INPUTS[model.stem]:
        shape = [extents[dim] if isinstance(dim, str) else dim for dim in dims]
        if dtype == "float32":
            feeds[name] = rng.standard_normal(shape, np.float32)
        elif name == "input_ids":
            feeds[name] = rng.integers(5, 30_000, shape)
        else:
            feeds[name] = np.ones(shape, np.int64)
            feeds[name][:, -max(1, shape[-1] // 10) :] = 0
    return feeds


def pss_mib() -> float:
    rollup = Path("/proc/self/smaps_rollup").read_text()
    (size_kib,) = re.findall(r"^Pss: +(\d+) kB", rollup, re.MULTILINE)
    return int(size_kib) / 1024


def one_graph(model: Path, folder: Path, shapes: Sequence[Extents], *, lanes: bool) -> list[Run]:
    """The trial, without torch."""
    from benchmarks.one_graph.model import store, stored
    from benchmarks.one_graph.plan import Packed, Plan
    from braid.engine.onednn.functions import find_functions
    from braid.engine.runtime.memory import keep_freed_memory

    keep_freed_memory()
    if not folder.exists():
        store(model, folder)
    kept, packed = stored(folder), Packed()
    functions = find_functions()
    assert functions is not None, "there is no oneDNN"
    functions.by_name.omp_set_num_threads(THREADS)
    runs: list[Run] = []
    for extents in shapes:
        plan = Plan(kept, extents, THREADS, packed=packed, lanes=lanes)
        feeds, outputs = feeds_of(model, extents), plan.empty_outputs()
        runs.append(partial(plan.run, feeds, outputs))
    kept.release()  # kernels have packed what they read
    assert "torch" not in sys.modules
    return runs


def present(model: Path, folder: Path, shapes: Sequence[Extents]) -> list[Run]:
    """The project's sequential plan in the worker's table of models, of usual kernels."""
    import torch

    from braid.core.plan import sequential_plan
    from braid.core.program import PlanToRun, ProgramKey
    from braid.engine.cpu.backend import CpuBackend
    from braid.engine.cpu.executor import CpuExecutor
    from braid.engine.importer.host.report import read_report
    from braid.engine.runtime.arrays import dtype_of
    from braid.engine.runtime.memory import keep_freed_memory
    from braid.engine.runtime.threads import usable_cpus
    from braid.engine.worker.models import ModelTable

    keep_freed_memory()
    torch.set_grad_enabled(False)
    backend = CpuBackend(CpuExecutor(THREADS, usable_cpus()[:THREADS]))
    table, digest = ModelTable(backend), read_report(folder).sha256
    table.load(digest, folder)
    runs: list[Run] = []
    for extents in shapes:
        inputs = feeds_of(model, extents)
        specs = [(name, TensorType(dtype_of(one), one.shape)) for name, one in inputs.items()]
        key = ProgramKey(digest, tuple(specs))
        plan = sequential_plan(len(table.program(key).units))
        ready = table.executable_of(PlanToRun(key, plan), None).prepared
        outputs = {name: np.empty_like(one) for name, one in ready.run(inputs).items()}
        runs.append(partial(_begin, ready, inputs, outputs))
    return runs


def _begin(ready: Any, inputs: Any, outputs: Any) -> None:
    ready.begin(inputs, outputs).finish()


def onnxruntime(model: Path, folder: Path, shapes: Sequence[Extents]) -> list[Run]:
    """One session for all shapes, as a user of ONNX Runtime has it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    every = [feeds_of(model, extents) for extents in shapes]
    return [partial(session.run, None, feeds) for feeds in every]


WAYS: Mapping[str, Callable[[Path, Path, Sequence[Extents]], list[Run]]] = {
    "one graph": partial(one_graph, lanes=False),
    "one graph, lanes": partial(one_graph, lanes=True),
    "present": present,
    "onnxruntime": onnxruntime,
}


def main(way: str, model: str, folder: str, *shapes: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print to stdout
    given = [
        {axis: int(extent) for axis, extent in (one.split("=") for one in shape.split(","))}
        for shape in shapes
    ]
    began = perf_counter()
    runs = WAYS[way](Path(model), Path(folder), given)
    prepared = perf_counter()
    for run in runs:
        run()
    answered = perf_counter()
    print(json.dumps([prepared - began, answered - prepared]), file=answers)
    for line in sys.stdin:
        word, *numbers = line.split()
        if word == "pss":
            print(json.dumps(pss_mib()), file=answers)
            continue
        run, times_ms = runs[int(numbers[0])], []
        run()
        for _ in range(int(numbers[1])):
            start = perf_counter_ns()
            run()
            times_ms.append((perf_counter_ns() - start) / 1e6)
        print(json.dumps(times_ms), file=answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
