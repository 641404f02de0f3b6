"""Recurrent layers outside the interpreter: LSTM, GRU and plain ones, in FP32.

    x ──one product with all input weights──> gates of all steps ──vectors.c──> outputs, last states

Each direction, and each part of the batch, is a task of one thread.
"""

import ctypes
import math
from functools import partial

import numpy as np

from braid.core.graph import Operator
from braid.engine.cpu.kernels.native_units import VARIANT, words
from braid.engine.cpu.kernels.unit_binding import UnitBinding
from braid.engine.cpu.native.find import find_native
from braid.engine.onednn import floats
from braid.engine.onednn.library import (
    BIAS,
    DST,
    MANY,
    SCRATCH,
    SRC,
    WEIGHTS,
    NativeCall,
    PostOp,
)
from braid.engine.onednn.recipe import Action, Buffer, Place, Recipe
from braid.engine.ops.families.recurrent import RecurrentOptions
from braid.engine.program.kernel import Kernel
from braid.engine.runtime.arrays import Array

_LAYERS = {"lstm": (0, 4), "gru": (1, 3), "rnn_tanh": (2, 1), "rnn_relu": (3, 1)}
"""Layer -> its number in vectors.c, and its gates."""

_START, _START_CELL = 2, 3
_PANEL = 64


class _Recurrent(ctypes.Structure):
    _fields_ = (
        ("data_of", ctypes.c_void_p),
        *words("layer", "gates", "steps", "rows", "hidden", "columns", "directions", "is_reverse"),
        *words("gates_time", "gates_row", "out_time", "out_direction", "out_row"),
        *words("state_direction", "state_row", "parts", "threads", "scratch"),
    )


def recurrent(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    """Kernel of a layer whose weights are constants."""
    native, how = find_native(), RecurrentOptions(**unit.attributes)  # type: ignore[arg-type]
    data, _, *rest = unit.inputs
    count = 2 if how.layer == "lstm" else 1
    starts, names = rest[:count], rest[2:]
    if native is None or how.layer not in _LAYERS or steps:
        return None
    if binding.library.dtype != "FP32" or not all(map(binding.is_plain, unit.outputs)):
        return None
    if any(name and not binding.is_plain(name) for name in starts):
        return None
    given = [binding.constant(name) for name in names]
    weights = [weight for weight in given if weight is not None and weight.dtype == np.float32]
    directions = 2 if how.direction == "bidirectional" else 1
    if len(weights) < len(given) or len(unit.outputs) != 1 + count:
        return None
    of_direction = len(weights) // directions
    (layer, gates), hidden = _LAYERS[how.layer], how.hidden
    extents = binding.shape(data)[:2]
    steps_, rows = extents[::-1] if how.batch_first else extents
    columns = math.ceil(gates * hidden / _PANEL) * _PANEL
    by_direction = [weights[d * of_direction : (d + 1) * of_direction] for d in range(directions)]
    all_gates = directions * gates * hidden
    distances = _distances(how, steps_, rows, directions, gates * hidden)

    def make(threads: int) -> Recipe:
        library, name = binding.library, "+".join((how.layer, *names))  # weights may be shared
        whole, bias = np.concatenate([arrays[0] for arrays in by_direction]), None
        if of_direction > 2:
            bias = binding.packed.once(
                (VARIANT, "biases", name), partial(_biases, by_direction, how.layer)
            )
        with library.threads(threads):
            of_bias = None if bias is None else "FP32"
            (n, k), m = whole.shape, steps_ * rows
            primitive, as_is = floats.linear(library, m, k, n, of_bias, [])
            by = whole if as_is else whole.T
            packed = binding.packed.for_primitive(library, primitive, f"{name}@{as_is}", by)
        parts = min(rows, max(1, threads // directions))
        of_part = math.ceil(rows / parts) * (2 * hidden + columns)
        structure = _Recurrent(
            *(None, layer, gates, steps_, rows, hidden, columns, directions),
            *(how.direction == "reverse", *distances, parts, threads, of_part),
        )
        fixed = {
            WEIGHTS: binding.packed.once(
                (VARIANT, "states", name), partial(_states, by_direction, columns)
            )
        }
        if of_direction > 2 and how.layer == "gru":
            late = [arrays[3][2 * hidden :] for arrays in by_direction]
            fixed[BIAS] = binding.packed.once((VARIANT, "late", name), partial(np.stack, late))
        product = Action(
            primitive,
            {WEIGHTS: packed, **({} if bias is None else {BIAS: bias})},
            {SRC: Place("operand", 0), DST: Place("temporary", 0)},
        )
        places = {SRC: Place("temporary", 0), SCRATCH: Place("temporary", 1)}
        places |= {DST: Place("result", 0)}
        places |= {MANY + number: Place("result", 1 + number) for number in range(count)}
        operands = [(0, False)]
        for argument, position in ((_START, 2), (_START_CELL, 3))[:count]:
            known = binding.constant(unit.inputs[position])
            if known is not None:
                fixed |= {argument: known} if bool(known.any()) else {}
            elif unit.inputs[position]:
                places[argument] = Place("operand", len(operands))
                operands.append((position, False))
        layer_call = NativeCall(library, native.braid_recurrent, structure)
        return Recipe(
            (product, Action(layer_call, fixed, places)),
            tuple(operands),
            tuple(binding.buffer(binding.shape(value), images=False) for value in unit.outputs),
            (
                Buffer((steps_ * rows, all_gates), images=False),
                Buffer((directions * parts * of_part,), images=False),
            ),
        )

    is_dense = all(map(binding.lies_dense, (*unit.outputs, *filter(None, unit.inputs[:4]))))
    return Kernel(VARIANT, recipe=make, needs_finite=True) if is_dense else None


def _distances(
    how: RecurrentOptions, steps: int, rows: int, directions: int, gates: int
) -> tuple[int, ...]:
    """Of gates: steps, sequences; outputs: steps, directions, sequences; states: the last two."""
    size = how.hidden
    if how.batch_first:
        of_gates = directions * gates, steps * directions * gates
        out = directions * size, size, steps * directions * size
        return *of_gates, *out, size, directions * size
    of_gates = rows * directions * gates, directions * gates
    return *of_gates, directions * rows * size, rows * size, size, rows * size, size


def _biases(by_direction: list[list[Array]], layer: str) -> Array:
    """Both biases of all gates; of a GRU's last gate the first one: the other is reset."""
    sums = []
    for _, _, of_input, of_state in by_direction:
        late = of_state.copy()
        if layer == "gru":
            late[2 * len(late) // 3 :] = 0
        sums.append(of_input + late)
    return np.concatenate(sums)


def _states(by_direction: list[list[Array]], columns: int) -> Array:
    """Weights of states as vectors.c reads them: [directions, panels, hidden, 64]."""
    parts = []
    for arrays in by_direction:
        weight = arrays[1].T  # [hidden, gates * hidden]
        padded = np.pad(weight, ((0, 0), (0, columns - weight.shape[1])))
        parts.append(padded.reshape(len(weight), -1, _PANEL).swapaxes(0, 1))
    return np.stack(parts)
