"""What computing on integers costs each unit: errors of outputs, and means of rounding errors.

    exact values ──unit, rounded──> its result ──the rest of the graph, exact──> error of outputs

The rest is computed again as far as it depends on the unit. Units that round worst by themselves
come first; those that time does not suffice for are ordered by that error.
"""

import dataclasses
from collections.abc import Callable, Collection, Generator, Sequence
from time import process_time

import numpy as np

from braid.core.graph import Operator, OpGraph
from braid.core.quantisation import Quantisation, Shift
from braid.engine.ops.dtypes import arrays_of, tensor_of, tensors_of
from braid.engine.ops.families.quantised import dequantise, quantise
from braid.engine.ops.kinds import EPILOGUE, call
from braid.engine.passes.body import Weights
from braid.engine.passes.quantised.calibrated import (
    corrected_bias,
    grid_of,
    rounded_weights,
    shift_of,
    weight_scales,
)
from braid.engine.passes.quantised.candidates import data_operands
from braid.engine.program.kernel import Value
from braid.engine.runtime.arrays import Arrays
from braid.engine.runtime.threads import team_threads
from braid.engine.timing.comparison import errors
from braid.engine.worker.measuring.exact_runs import exact_run


class Budget:
    """Bounds work by the CPU time of this process, of all threads together."""

    def __init__(
        self, seconds: float, clock: Callable[[], float] = process_time, threads: int = 0
    ) -> None:
        """``seconds`` are of each of ``threads`` that compute; 0: as many as there are."""
        self._clock, self._began = clock, clock()
        self._seconds = seconds * (threads or team_threads())

    @property
    def spent(self) -> float:
        """Part of the time that has gone, at most 1."""
        return min(1.0, (self._clock() - self._began) / self._seconds)

    @property
    def is_left(self) -> bool:
        return self.spent < 1


VALUES_BYTES = 1 << 30  # of values kept at once; of larger graphs the own error decides

SECONDS = 30.0  # CPU seconds a thread; a unit that was begun is finished


def most_sensitive_first(
    graph: OpGraph, given: Weights, units: Collection[str], how: Quantisation
) -> Generator[None, None, list[str]]:
    """Names of units with weights, of an FP32 graph; ``given``: constants, inputs of a sample."""
    is_small = sum(spec.size_bytes for spec in graph.specs.values()) <= VALUES_BYTES
    values, budget = dict(given), Budget(SECONDS)
    errors = yield from _own_errors(graph, values, units, how, keep_all=is_small)
    cost: dict[str, float] = {}
    at = {op.name: index for index, op in enumerate(graph.operators)}
    for name in sorted(errors, key=lambda name: errors[name], reverse=True):
        if not is_small or not budget.is_left:
            break
        changed = rounded(graph.operators[at[name]], values, how)
        cost[name] = _carried_on(graph, at[name] + 1, values, changed)
        yield
    return sorted(errors, key=lambda name: (cost.get(name, -1.0), errors[name]), reverse=True)


def most_rounded(
    graph: OpGraph, given: Weights, units: Collection[str], how: Quantisation
) -> Generator[None, None, str]:
    """Text that names the unit on integers with the largest error of its own; empty if none is."""
    on_integers = set(units) - set(how.wide)
    errors = yield from _own_errors(graph, dict(given), on_integers, how, keep_all=False)
    if not errors:
        return ""
    worst = max(errors, key=lambda name: errors[name])
    kind = next(op.kind for op in graph.operators if op.name == worst)
    return f"{worst} ({kind.partition('.')[2]}), {errors[worst]:.2g} by itself"


def _own_errors(
    graph: OpGraph,
    values: dict[str, Value],
    units: Collection[str],
    how: Quantisation,
    *,
    keep_all: bool,
) -> Generator[None, None, dict[str, float]]:
    """Errors of units on exact operands that were rounded, in an exact run."""
    errors: dict[str, float] = {}

    def visit(op: Operator, values: Weights) -> None:
        if op.name in units and all(value in how.ranges for value in data_operands(op)):
            errors[op.name] = _error(rounded(op, values, how), values)

    yield from exact_run(graph, values, visit, keep_all=keep_all)
    return errors


def rounded(op: Operator, values: Weights, how: Quantisation) -> dict[str, Value]:
    operands: list[Value | None] = []
    data = data_operands(op)
    for position, name in enumerate(op.inputs):
        tensor = values[name] if name else None
        if tensor is not None and position == 1:
            scales = weight_scales(tensor)
            tensor = dequantise(rounded_weights(tensor, scales), scales, axis=0)
        elif tensor is not None and name in data:
            scale, zero = grid_of(*how.ranges[name])
            grid = tensor_of(np.array(scale, np.float32)), tensor_of(np.array(zero, np.uint8))
            tensor = dequantise(quantise(tensor, *grid), *grid)
        operands.append(tensor)
    if (shift := how.shifts.get(op.name)) is not None:
        operands += [None] * (3 - len(operands))
        none = np.zeros(len(shift.steps), np.float32)
        bias = tensor_of(none) if operands[2] is None else operands[2]
        operands[2] = corrected_bias(bias, shift)
    return dict(zip(op.outputs, call(op, operands), strict=False))


def _carried_on(graph: OpGraph, first: int, values: Weights, changed: dict[str, Value]) -> float:
    """Error of the graph's outputs if some values are others."""
    last = {name: i for i, op in enumerate(graph.operators) for name in op.inputs}
    outputs = set(graph.outputs.values())
    for index, op in enumerate(graph.operators[first:], start=first):
        if changed.keys().isdisjoint(op.inputs):
            continue
        operands = [changed.get(n, values[n]) if n else None for n in op.inputs]
        changed.update(zip(op.outputs, call(op, operands), strict=False))
        for name in op.inputs:
            if last[name] == index and name not in outputs:
                changed.pop(name, None)
    return _error({name: changed[name] for name in outputs & changed.keys()}, values)


def _error(results: Weights, values: Weights) -> float:
    return errors(arrays_of(results), arrays_of({name: values[name] for name in results}))[1]


def mean_shifts(
    graph: OpGraph,
    constants: Weights,
    samples: Sequence[Arrays],
    units: Collection[str],
    how: Quantisation,
) -> Generator[None, None, dict[str, Shift]]:
    """Shifts by unit: means of what rounding adds to its results, by output channel.

    Rounding changes the sum of the weights, and cutting off makes large values smaller; another
    bias corrects the mean. ``samples`` are inputs of an FP32 graph, ``how`` has ranges only.
    """
    sums: dict[str, Value] = {}

    def visit(op: Operator, values: Weights) -> None:
        if op.name in units and all(value in how.ranges for value in data_operands(op)):
            difference = _difference(op, values, how)
            sums[op.name] = sums[op.name] + difference if op.name in sums else difference

    for inputs in samples:
        yield from exact_run(graph, {**constants, **tensors_of(inputs)}, visit)
    return {name: shift_of(total / len(samples)) for name, total in sums.items()}


def _difference(op: Operator, values: Weights, how: Quantisation) -> Value:
    """Mean of what rounding adds, before any function of the result."""
    attributes = {name: value for name, value in op.attributes.items() if name != EPILOGUE}
    bare = dataclasses.replace(op, attributes=attributes)
    (exact,) = call(bare, [values[name] if name else None for name in op.inputs])
    (result,) = rounded(bare, values, how).values()
    channel = 1 if "convolution" in op.kind else exact.dim() - 1
    return (result - exact).mean([axis for axis in range(exact.dim()) if axis != channel])
