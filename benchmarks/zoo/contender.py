"""One way to run exported files, in a process of its own: ``python -m benchmarks.zoo.contender``.

    serves        what Braid chooses; a file is compiled when it is loaded
    sequential    Braid's own sequential plan, on the kernels that were chosen
    plain         the same on its usual kernels, of an import; nothing is compiled
    onnxruntime, openvino

Each line that it reads is a ``Load`` as JSON, answered by facts as JSON once the file is warm and
its outputs are written; or a number, answered by the milliseconds of that many runs as a JSON list.
What cannot be loaded is answered by ``{"refused": why}``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks.zoo.feeds import FP32, Arrays, feeds_of

SERVES, SEQUENTIAL, PLAIN = OWN = ("serves", "sequential", "plain")
WARM_UPS = 5


@dataclass(frozen=True, slots=True)
class Load:
    """A file to run next."""

    file: str  # as benchmarks.zoo.files exported it
    rows: int
    outputs: str  # file to write them to
    type: str = FP32
    threads: int = 1
    store: str = ""  # of Braid's schedules
    planner: str = ""
    artefact: str = ""  # of the import, for ``plain``


@dataclass(frozen=True, slots=True)
class Contestant:
    """A network that is ready to run: its outputs, and the milliseconds of so many runs."""

    outputs: Arrays
    turn_ms: Callable[[int], list[float]]
    facts: Mapping[str, Any] = field(default_factory=dict)


Loader = Callable[[Load, Arrays, ExitStack], Contestant]


def turns_of(run: Callable[[], object]) -> Callable[[int], list[float]]:
    def turn_ms(count: int) -> list[float]:
        samples = []
        for _ in range(count):
            began = perf_counter_ns()
            run()
            samples.append((perf_counter_ns() - began) / 1e6)
        return samples

    return turn_ms


def onnxruntime(load: Load, feeds: Arrays, stack: ExitStack) -> Contestant:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = load.threads
    session = onnxruntime.InferenceSession(load.file, options, providers=["CPUExecutionProvider"])
    values = {}
    for given in session.get_inputs():
        array = feeds[given.name]
        values[given.name] = (
            onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), 16)
            if array.dtype == ml_dtypes.bfloat16
            else onnxruntime.OrtValue.ortvalue_from_numpy(array)
        )
    names = [output.name for output in session.get_outputs()]
    answers = session.run_with_ort_values(None, values)
    outputs = dict(zip(names, (answer.numpy() for answer in answers), strict=True))
    return Contestant(outputs, turns_of(lambda: session.run_with_ort_values(None, values)))


def openvino(load: Load, feeds: Arrays, stack: ExitStack) -> Contestant:
    import openvino

    core = openvino.Core()
    model = core.read_model(load.file)
    taken = {name for port in model.inputs for name in port.names}
    arrays = {name: array for name, array in feeds.items() if name in taken}
    model.reshape({name: list(array.shape) for name, array in arrays.items()})
    properties = {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": load.threads,
    }
    request = core.compile_model(model, "CPU", properties).create_infer_request()
    tensors = {
        name: openvino.Tensor(array.view(np.uint16), list(array.shape), openvino.Type.bf16)
        if array.dtype == ml_dtypes.bfloat16
        else openvino.Tensor(array)
        for name, array in arrays.items()
    }
    answers = request.infer(tensors)
    outputs = {name: np.array(array) for port, array in answers.items() for name in port.names}
    return Contestant(outputs, turns_of(lambda: request.infer(tensors)))


RUNTIMES: Mapping[str, Loader] = {"onnxruntime": onnxruntime, "openvino": openvino}


def loader_of(name: str) -> Loader:
    """Return what loads files; torch is imported for Braid's own only."""
    if name in RUNTIMES:
        return RUNTIMES[name]
    loader: Loader = getattr(import_module("benchmarks.zoo.plans"), name)
    return loader


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo.contender")
    parser.add_argument("contender", choices=[*OWN, *RUNTIMES])
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of compilers, about things that nobody here can change
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print to stdout
    loader, contestant = loader_of(options.contender), None
    with ExitStack() as stack:
        for line in sys.stdin:
            if contestant is not None and line.strip().isdigit():
                contestant.turn_ms(1)
                answers.write(json.dumps(contestant.turn_ms(int(line))) + "\n")
                continue
            contestant = None
            stack.close()
            try:
                contestant = _loaded(Load(**json.loads(line)), loader, stack)
            except Exception as error:  # of any library
                why = f"{type(error).__name__}: {error}".replace("\n", " ")
                answers.write(json.dumps({"refused": why[:300]}) + "\n")
            else:
                answers.write(json.dumps(contestant.facts) + "\n")


def _loaded(load: Load, loader: Loader, stack: ExitStack) -> Contestant:
    feeds = feeds_of(Path(load.file), load.rows, load.type)
    contestant = loader(load, feeds, stack)
    floats = {name: array.astype(np.float64) for name, array in contestant.outputs.items()}
    np.savez(load.outputs, allow_pickle=False, **floats)
    contestant.turn_ms(WARM_UPS)
    return contestant


def line_of(load: Load) -> str:
    return json.dumps(asdict(load))


if __name__ == "__main__":
    main()
