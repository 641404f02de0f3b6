"""Units on one build of oneDNN, alone in a process: ``python -m benchmarks.onednn_units``.

Started by ``benchmarks.which_onednn``. Prints ``ready`` when all units were made and are warm;
then, for each line that it reads, a JSON list with the microseconds of each unit, null where the
build has no fast kernel. Between two runs of a unit all others run: its weights are in no near
cache.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch

from benchmarks.onednn_in_torch import InsideTorch
from braid.core.graph import OpGraph
from braid.engine.onednn import floats
from braid.engine.onednn.functions import Functions, find_functions, functions_of_file
from braid.engine.onednn.library import (
    BIAS,
    DST,
    SRC,
    WEIGHTS,
    ComputationCall,
    OneDnn,
    PostOp,
    Primitive,
    Unsupported,
)
from braid.engine.ops.kinds import EPILOGUE
from braid.engine.program.attributes import image_window

LIBRARIES = ("package", "torch", "operators")
PRECISIONS = {
    "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.uint8
}  # fmt: skip
RUNS = 3  # of each unit for one answer
THREADS = 2


class UnitShape(NamedTuple):
    """A convolution, or a linear layer, which has no window."""

    source: tuple[int, ...]  # [n, c, h, w] or [rows, k]
    weights: tuple[int, ...]  # [groups, out / groups, c, kh, kw] or [k, n]
    result: tuple[int, ...]
    window: tuple[tuple[int, ...], ...]  # stride, padding, dilation
    relu: bool


def shapes_of(graph: OpGraph) -> Iterator[UnitShape]:
    for unit in graph.operators:
        shapes = [tuple(map(int, graph.spec(name).shape)) for name in unit.inputs[:2] if name]
        relu = "relu" in str(unit.attributes.get(EPILOGUE))
        (*rows, n), result = graph.spec(unit.outputs[0]).shape, graph.spec(unit.outputs[0]).shape
        if unit.kind == "aten.convolution" and len(shapes[0]) == 4:
            stride, padding, dilation, groups = image_window(unit)
            out, *taps = shapes[1]
            weights = (groups, out // groups, *taps)
            window = tuple(map(tuple, (stride, padding, dilation)))
            yield UnitShape(shapes[0], weights, tuple(map(int, result)), window, relu)
        elif unit.kind == "aten.linear" and unit.inputs[1] in graph.constants:
            count = 1
            for extent in rows:
                count *= int(extent)
            k = shapes[1][1]
            yield UnitShape((count, k), (k, int(n)), (count, int(n)), (), relu)


class Direct:
    """Units as primitives of a library."""

    def __init__(self, functions: Functions, dtype: torch.dtype) -> None:
        self._library = _Quantising(functions).on(dtype)
        self._bias = torch.empty(0, dtype=torch.float32 if dtype == torch.uint8 else dtype)
        self._wait = functions.by_name.dnnl_stream_wait

    def run_of(self, unit: UnitShape) -> Callable[[], None]:
        """A function that executes a unit."""
        primitive = self._convolution(unit) if unit.window else self._matmul(unit)
        library, sizes = self._library, self._library.size_bytes
        data = {
            argument: torch.zeros(sizes(primitive.layout(argument)), dtype=torch.uint8)
            for argument in (SRC, WEIGHTS, BIAS, DST)
        }
        call = ComputationCall(primitive, data, ())
        _, handle, stream, count, arguments = call.words
        execute, wait = library.execute, self._wait

        def run(kept: ComputationCall = call) -> None:
            execute(handle, stream, count, arguments)
            wait(ctypes.c_void_p(stream))  # for builds whose execution is asynchronous

        return run

    def _convolution(self, unit: UnitShape) -> Primitive:
        stride, padding, dilation = unit.window
        grouped = unit.weights if unit.weights[0] > 1 else unit.weights[1:]
        shapes, window = (unit.source, grouped, unit.result), (stride, dilation, padding, padding)
        return floats.convolution(self._library, shapes, self._bias, window, self._steps(unit))

    def _matmul(self, unit: UnitShape) -> Primitive:
        (m, k), (_, n) = unit.source, unit.weights
        return floats.matmul(self._library, m, k, n, self._bias, self._steps(unit))

    def _steps(self, unit: UnitShape) -> list[PostOp]:
        return [("relu", 0.0, 0.0)] if unit.relu else []


class _Quantising(OneDnn):
    """The library with signed weights for unsigned data."""

    def any_order(self, shape: Sequence[int]) -> Any:
        if self.dtype == torch.uint8:
            return self.on(torch.int8).any_order(shape)
        return super().any_order(shape)


class Operators:
    """Units as torch's operators on oneDNN."""

    def __init__(self, dtype: torch.dtype) -> None:
        if dtype == torch.uint8:
            raise Unsupported("quantised operators are not measured")
        self._dtype = dtype

    def run_of(self, unit: UnitShape) -> Callable[[], None]:
        ops, relu = torch.ops.mkldnn, "relu" if unit.relu else "none"
        source = torch.zeros(unit.source, dtype=self._dtype)
        bias = torch.zeros(unit.result[1], dtype=self._dtype)
        if not unit.window:
            weight = torch.zeros(unit.weights[::-1], dtype=self._dtype)
            packed = ops._reorder_linear_weight(weight, unit.source[0])
            return lambda: ops._linear_pointwise(source, packed, bias, relu, [], "")
        groups, out, *taps = unit.weights
        stride, padding, dilation = map(list, unit.window)
        weight = torch.zeros((groups * out, *taps), dtype=self._dtype)
        window: list[Any] = [padding, stride, dilation, groups]
        packed = ops._reorder_convolution_weight(weight, *window, list(unit.source))
        images = source.contiguous(memory_format=torch.channels_last)
        return lambda: ops._convolution_pointwise(images, packed, bias, *window, relu, [], "")


def find(source: str, dtype: torch.dtype) -> Direct | Operators:
    """The contender of a name in ``LIBRARIES``, or of the file of a library."""
    if source == "operators":
        return Operators(dtype)
    if source == "torch":
        return Direct(InsideTorch().functions(), dtype)
    functions = find_functions() if source == "package" else functions_of_file(source)
    assert functions is not None, "the package is not installed"
    return Direct(functions, dtype)


def _runnable(contender: Direct | Operators, unit: UnitShape) -> Callable[[], object] | None:
    try:
        run = contender.run_of(unit)
    except Unsupported:
        return None
    run()
    return run


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("units", type=Path, help="JSON")
    parser.add_argument("precision", choices=PRECISIONS)
    parser.add_argument("source", help=f"{', '.join(LIBRARIES)} or the file of a library")
    args = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print to stdout
    torch.set_num_threads(THREADS)
    contender = find(args.source, PRECISIONS[args.precision])
    runs = [_runnable(contender, _unit(*listed)) for listed in json.loads(args.units.read_text())]
    answers.write("ready\n")
    for _ in sys.stdin:
        answers.write(json.dumps(_timed(runs)) + "\n")


def _unit(source: Any, weights: Any, result: Any, window: Any, relu: bool) -> UnitShape:
    return UnitShape(
        tuple(source), tuple(weights), tuple(result), tuple(map(tuple, window)), relu
    )  # fmt: skip


def _timed(runs: Sequence[Callable[[], object] | None]) -> list[float | None]:
    """Microseconds of each unit, the best of some runs; all units run between two of one."""
    best: list[float | None] = [None] * len(runs)
    for _ in range(RUNS):
        for index, run in enumerate(runs):
            if run is None:
                continue
            start = perf_counter_ns()
            run()
            us = (perf_counter_ns() - start) / 1e3
            best[index] = min(best[index] or us, us)
    return best


if __name__ == "__main__":
    main()
