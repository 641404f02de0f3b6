"""Elementwise units on oneDNN primitives, which read and write numbers in any order.

A value of four axes lies as images where a unit on images makes or reads it, also through other
elementwise units. Where only elementwise units touch it, it is dense, as requests bring it and
answers want it: of the 442 us that doubling 600 KB took in service, reordering took 307.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from braid.core.attributes import wholes
from braid.core.graph import Operator, OpGraph
from braid.engine.cpu.kernels.element_units import OF_INTEGERS, OPERATIONS, PICKS, REDUCTIONS
from braid.engine.cpu.kernels.epilogues import post_op
from braid.engine.cpu.kernels.unit_binding import VARIANT, UnitBinding, number
from braid.engine.onednn import floats
from braid.engine.onednn.library import (
    ADD,
    BINARY_ADD,
    BINARY_DIVIDE,
    BINARY_MAX,
    BINARY_MIN,
    BINARY_MULTIPLY,
    BINARY_SUBTRACT,
    DST,
    DTYPES,
    POST_OP,
    SCALES,
    SRC,
    SRC_1,
    OneDnn,
    PostOp,
)
from braid.engine.onednn.recipe import Action, Buffer, Place, Recipe
from braid.engine.ops.families.attention import ATTENTION, ROTATE
from braid.engine.ops.families.quantised_unit import DEQUANTISE, IDENTITY, QUANTISE
from braid.engine.ops.kinds import EPILOGUE, OPS, WEIGHTED_SUM
from braid.engine.passes.attention import RESHAPES
from braid.engine.passes.fusion import weights_of
from braid.engine.program.kernel import Kernel
from braid.engine.runtime.arrays import strides_of

_ALGORITHMS = {
    "aten.add": BINARY_ADD,
    "aten.mul": BINARY_MULTIPLY,
    "aten.sub": BINARY_SUBTRACT,
    "aten.div": BINARY_DIVIDE,
    "aten.maximum": BINARY_MAX,
    "aten.minimum": BINARY_MIN,
}
COMBINING = frozenset(_ALGORITHMS)

_Laid = tuple[tuple[int, ...], tuple[int, ...]]  # extents and strides, in numbers

_KINDS = COMBINING | {
    *(WEIGHTED_SUM, QUANTISE, DEQUANTISE, "aten.cat", "braid.slice", "braid.split", "braid.pad"),
    *("braid.cast", "aten.where", *OPERATIONS),
}
"""Kinds that are not pointwise, and whose results lie as their operands do."""

_OF_ROWS = RESHAPES | {
    *("aten.permute", "aten.matmul", "aten.linear", "braid.linear_add", "aten.softmax"),
    "aten.log_softmax",
    *("aten.layer_norm", "braid.rms_norm", ATTENTION, ROTATE),
    *("braid.argmax", "braid.argmin", "braid.topk", "braid.cumsum", *PICKS),
    *("aten.select", "braid.expand", "braid.recurrent", "aten.einsum", "braid.dft"),
}
"""Kinds that want and make numbers in the order of their shape, or do with any."""


def combined(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    """Kernel of a sum, product and so on; one operand may be repeated along axes."""
    (result,) = unit.outputs
    shape, algorithm = binding.shape(result), _ALGORITHMS[unit.kind]
    places = [at for at, name in enumerate(unit.inputs) if binding.shape(name) == shape]
    if len(unit.inputs) != 2 or not shape or not places:
        return None
    if set(unit.attributes) - {EPILOGUE, *OF_INTEGERS}:
        return None
    if places[0] == 1 and algorithm in (BINARY_SUBTRACT, BINARY_DIVIDE):
        return None  # oneDNN repeats the second operand only
    if not all(map(binding.is_plain, unit.inputs)):
        return None
    first, second = places[0], 1 - places[0]
    right, buffer = unit.inputs[second], binding.result(unit.outputs[0])
    if (function := _with_number(right, binding, algorithm)) is not None:
        functions = [function, *steps]
        return _in_turn(binding, first, functions, buffer, needs_finite=bool(steps))
    whole: _Laid = shape, binding.strides(result)
    repeated: _Laid
    is_dense = len(places) < 2 and (right in binding.graph.constants or binding.lies_dense(right))
    if len(places) == 2:  # rows of numbers that lie alike, whatever their shape
        whole = repeated = (math.prod(shape),), (1,)
    else:
        repeated = _padded(binding.shape(right), right, binding, len(shape), is_dense=is_dense)
    operands = (first, buffer.images), (second, buffer.images if len(places) == 2 else not is_dense)

    def make(threads: int) -> Recipe:
        library = binding.library
        with library.threads(threads):
            layouts = library.strided(*whole), library.strided(*repeated), library.strided(*whole)
            primitive = floats.binary(library, algorithm, layouts, steps)
        arguments = {SRC: Place("operand", 0), SRC_1: Place("operand", 1), DST: Place("result", 0)}
        return Recipe((Action(primitive, {}, arguments),), operands, (buffer,))

    is_exact = not steps and algorithm not in (BINARY_MAX, BINARY_MIN)
    return Kernel(VARIANT, recipe=make, needs_finite=not is_exact)


def _padded(
    own: tuple[int, ...], value: str, binding: UnitBinding, rank: int, *, is_dense: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of an operand with axes of extent 1 before its own."""
    strides = strides_of(own) if is_dense else binding.strides(value)
    missing = rank - len(own)
    return (*[1] * missing, *own), (*[math.prod(own)] * missing, *strides)


def _with_number(value: str, binding: UnitBinding, algorithm: int) -> PostOp | None:
    """A product, sum or difference with a constant number, as a function of the other operand."""
    constant = binding.constant(value)
    if constant is None or constant.size != 1:
        return None
    number = float(constant.item())
    functions: Mapping[int, PostOp] = {
        BINARY_MULTIPLY: ("linear", number, 0.0),
        BINARY_ADD: ("linear", 1.0, number),
        BINARY_SUBTRACT: ("linear", 1.0, -number),
    }
    return functions.get(algorithm)


def weighted(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    """``((w0/w1 a + b) w1/w2 + c) w2`` in one pass: oneDNN scales a sum's first operand only."""
    shape = binding.shape(unit.outputs[0])
    if not all(binding.is_plain(term) and binding.shape(term) == shape for term in unit.inputs):
        return None
    weights = weights_of(unit)
    first, *ratios = [weight / following for weight, following in pairwise(weights)]
    chain: list[PostOp] = []
    arguments = {SRC: 0, SRC_1: 1}
    for position, ratio in enumerate(ratios, start=2):
        chain += [("linear", ratio, 0.0), (ADD, 0.0, 0.0)]
        arguments[POST_OP * len(chain) | SRC_1] = position
    chain += [("linear", weights[-1], 0.0), *steps]
    flat = binding.library.dense([math.prod(shape)])
    layouts = flat, flat, flat
    describe = partial(floats.binary, binding.library, BINARY_ADD, layouts, chain, {SRC: 0})
    fixed = {SCALES | SRC: number(first)}
    buffer = binding.result(unit.outputs[0])
    return binding.kernel(describe, arguments, buffer, fixed=fixed, needs_finite=True)


def pointwise(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    attributes = {name: value for name, value in unit.attributes.items() if name != EPILOGUE}
    first = post_op(unit.kind, attributes)
    shape = binding.shape(unit.outputs[0])
    if first is None or len(unit.inputs) != 1 or binding.shape(unit.inputs[0]) != shape:
        return None
    buffer = binding.result(unit.outputs[0])
    return _in_turn(binding, 0, [first, *steps], buffer, needs_finite=True)


def _in_turn(
    binding: UnitBinding,
    position: int,
    functions: Sequence[PostOp],
    buffer: Buffer,
    *,
    needs_finite: bool,
) -> Kernel:
    """Kernel of functions of one operand, a pass each: oneDNN fuses none into another."""

    def make(threads: int) -> Recipe:
        source = Place("operand", 0)
        first, *others = passes(binding.library, functions, buffer, threads)
        first = replace(first, places={**first.places, SRC: source})
        return Recipe((first, *others), ((position, buffer.images),), (buffer,))

    return Kernel(VARIANT, recipe=make, needs_finite=needs_finite)


def passes(
    library: OneDnn, functions: Sequence[PostOp], buffer: Buffer, threads: int
) -> list[Action]:
    count, result = math.prod(buffer.shape), Place("result", 0)
    with library.threads(threads):
        made = [floats.elementwise(library, count, function) for function in functions]
    return [Action(primitive, {}, {SRC: result, DST: result}) for primitive in made]


def cast(unit: Operator, binding: UnitBinding, steps: list[PostOp]) -> Kernel | None:
    source = binding.graph.spec(unit.inputs[0]).dtype
    shape = binding.shape(unit.outputs[0])
    if steps or source not in DTYPES or source == binding.library.dtype:
        return None
    describe = partial(floats.cast, binding.library, math.prod(shape), source)
    return binding.kernel(describe, {SRC: 0}, binding.result(unit.outputs[0]))


def image_values(graph: OpGraph) -> frozenset[str]:
    """Values that a unit on images makes or reads, also behind elementwise units."""
    users: dict[str, list[int]] = {}
    still = {"", *graph.constants}
    moving = [
        set() if _is_of_rows(unit) else {*unit.inputs, *unit.outputs} - still
        for unit in graph.operators
    ]
    for index, values in enumerate(moving):
        for value in values:
            users.setdefault(value, []).append(index)
    images = set[str]()
    left = [index for index, unit in enumerate(graph.operators) if not _is_elementwise(unit)]
    queued = set(left)
    while left:
        for value in moving[left.pop()] - images:
            images.add(value)
            further = [index for index in users[value] if index not in queued]
            queued.update(further)
            left += further
    return frozenset(images)


def _is_of_rows(unit: Operator) -> bool:
    if unit.kind in REDUCTIONS:
        return {*wholes(unit.attributes.get("dims") or [])} not in ({2, 3}, {-2, -1})
    return unit.kind in _OF_ROWS


def _is_elementwise(unit: Operator) -> bool:
    is_pointwise = unit.kind in OPS and OPS[unit.kind].pointwise
    on_integers = unit.attributes.get("unit") in ("aten.add", IDENTITY)
    return is_pointwise or unit.kind in _KINDS or on_integers
