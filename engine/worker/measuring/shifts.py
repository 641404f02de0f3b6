"""Means of what rounding adds to the results of units with weights, by output channel.

    exact operands ─┬────────────────unit────> results ─┐
                    └─rounded──unit on them──> results ─┴─> difference ──mean──> Shift

Rounding changes the sum of the weights, and cutting off makes large values smaller, so results are
off by a mean, which another bias corrects.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Generator, Mapping, Sequence

from torch import Tensor

from braid.core.graph import Operator, OpGraph
from braid.core.quantisation import Quantisation, Shift
from braid.engine.device import Tensors
from braid.engine.ops.kinds import EPILOGUE
from braid.engine.passes.quantised.calibrated import shift_of
from braid.engine.passes.quantised.candidates import data_operands
from braid.engine.worker.measuring.exact_runs import called, exact_run
from braid.engine.worker.measuring.sensitivity import rounded


def mean_shifts(
    graph: OpGraph,
    constants: Mapping[str, Tensor],
    samples: Sequence[Tensors],
    units: Collection[str],
    how: Quantisation,
) -> Generator[None, None, dict[str, Shift]]:
    """Shifts by unit; ``samples`` are inputs of an FP32 graph, ``how`` has ranges only."""
    sums: dict[str, Tensor] = {}

    def visit(op: Operator, values: Mapping[str, Tensor]) -> None:
        if op.name in units and all(value in how.ranges for value in data_operands(op)):
            difference = _difference(op, values, how)
            sums[op.name] = sums[op.name] + difference if op.name in sums else difference

    for inputs in samples:
        yield from exact_run(graph, {**constants, **inputs}, visit)
    return {name: shift_of(total / len(samples)) for name, total in sums.items()}


def _difference(op: Operator, values: Mapping[str, Tensor], how: Quantisation) -> Tensor:
    """Mean of what rounding adds, before any function of the result."""
    attributes = {name: value for name, value in op.attributes.items() if name != EPILOGUE}
    bare = dataclasses.replace(op, attributes=attributes)
    (exact,) = called(bare, [values[name] if name else None for name in op.inputs])
    (result,) = rounded(bare, values, how).values()
    channel = 1 if "convolution" in op.kind else exact.dim() - 1
    return (result - exact).mean([axis for axis in range(exact.dim()) if axis != channel])
