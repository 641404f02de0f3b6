"""A batch whose rows are divided over lanes: each lane computes the whole model for some of them.

    inputs ─┬─ rows 0 to 2 ──> lane 0, the calling thread: ONNX Runtime ──┬─> outputs
            └─ rows 3 and 4 ─> lane 1, a place of the device: own kernels ┘

Lanes wait for each other once, at the end. What they read and write are rows of the batch's own
arrays: nothing is copied.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from braid.core.errors import PreconditionFailed
from braid.core.graph import OpGraph
from braid.engine.device import DevicePart
from braid.engine.program.kernel import Kernel
from braid.engine.program.program import BoundUnit, Program
from braid.engine.runtime.arrays import Array, Arrays, empty_of
from braid.engine.runtime.threads import on_one_thread

Run = Callable[[Arrays, Arrays], None]  # inputs, outputs to fill


@dataclass(frozen=True, slots=True)
class RowsOnLane:
    """What computes some rows of a batch, and where."""

    place: DevicePart
    rows: int
    run: Run


def check_rows(graph: OpGraph, rows: int) -> None:
    """Check that the first dimension of all that enters and leaves a graph counts the rows.

    Raises ``PreconditionFailed``, also if an output is nothing that a unit makes.
    """
    made = {value for unit in graph.operators for value in unit.outputs}
    values = list(graph.outputs.values())
    if len(set(values)) < len(values) or not made.issuperset(values):
        raise PreconditionFailed("an output of the model is no value of its own")
    for value in (*graph.inputs, *values):
        if tuple(graph.spec(value).shape[:1]) != (rows,):
            raise PreconditionFailed(f"the first dimension of {value!r} does not count the rows")


def divided(program: Program, lanes: Sequence[RowsOnLane]) -> BoundUnit:
    """All units as one, on each lane's rows; the first lane is that of the calling thread."""
    graph = program.graph
    specs = {name: graph.spec(value) for name, value in graph.outputs.items()}
    first, *others = lanes

    def run(*arrays: Array) -> tuple[Array, ...]:
        dense = [np.asarray(array, order="C") for array in arrays]
        inputs = dict(zip(graph.inputs, dense, strict=True))
        outputs = {name: empty_of(spec) for name, spec in specs.items()}
        start = first.rows
        for lane in others:
            rows = slice(start, start + lane.rows)
            lane.place.start(partial(lane.run, _rows(inputs, rows), _rows(outputs, rows)))
            start += lane.rows
        try:
            with on_one_thread(0):
                rows = slice(0, first.rows)
                first.run(_rows(inputs, rows), _rows(outputs, rows))
        finally:
            for lane in others:
                lane.place.join()
        return tuple(outputs.values())

    return BoundUnit(
        Kernel("rows", run, needs_finite=True),
        inputs=tuple(program.slots[name] for name in graph.inputs),
        outputs=tuple(program.slots[value] for value in graph.outputs.values()),
        work_us=sum(unit.work_us for unit in program.units),
    )


def _rows(arrays: Arrays, rows: slice) -> Arrays:
    return {name: array[rows] for name, array in arrays.items()}
