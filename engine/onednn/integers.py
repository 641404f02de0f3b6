"""oneDNN's primitives on 8-bit integers: sums in 32 bits, then scales and post-operations in FP32.

    result = round(post_ops(scales * sum(weights * (source - zero point)) + bias)), saturated

Weights are signed. Where the source is signed, too, or has a zero point, what that adds to each
sum is kept behind the reordered weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from braid.engine.onednn.library import (
    AVERAGE_ALL,
    AVERAGE_VALID,
    BINARY_ADD,
    BINARY_DIVIDE,
    CONVOLUTION_DIRECT,
    INFERENCE,
    SRC,
    SRC_1,
    WEIGHTS,
    OneDnn,
    PostOp,
    Primitive,
    dims,
)

_BY_CHANNEL, _BY_GROUPED_CHANNEL, _BY_COLUMN = 0b1, 0b11, 0b10  # masks of axes of weights


@dataclass(frozen=True, slots=True)
class Types:
    """Types of the source, of the result, and of what is added to it."""

    source: str
    result: str
    summand: str


def convolution(
    library: OneDnn,
    types: Types,
    shapes: tuple[Sequence[int], Sequence[int], Sequence[int]],
    window: tuple[Sequence[int], Sequence[int], Sequence[int]],
    post_ops: Sequence[PostOp],
    zeros: Sequence[int],
) -> Primitive:
    """Convolution over channels_last data, with scales and a bias in FP32 by channel.

    ``shapes``: of source [n, c, h, w], weights [(groups,) out, c, kh, kw], output. ``window``:
    stride, dilation (1 is dense), padding, of each axis. ``zeros``: ``[SRC]`` or nothing.
    """
    source, weights, output = shapes
    stride, dilation, padding = window
    mask = _BY_GROUPED_CHANNEL if len(weights) > len(source) else _BY_CHANNEL
    summand = library.on(types.summand).images(output)
    handle = library.make(
        "convolution_forward_primitive_desc_create",
        *(library.engine, INFERENCE, CONVOLUTION_DIRECT),
        library.on(types.source).images(source),
        library.on("INT8").any_order(weights),
        library.on("FP32").dense([output[1]]),
        library.on(types.result).images(output),
        *(dims(stride), dims([d - 1 for d in dilation]), dims(padding), dims(padding)),
        library.attributes(post_ops, summand, {WEIGHTS: mask}, zeros),
    )
    return Primitive(library, handle)


def matmul(
    library: OneDnn, types: Types, m: int, k: int, n: int, post_ops: Sequence[PostOp]
) -> Primitive:
    """[m, k] by weights [k, n], with scales and a bias in FP32 by column."""
    handle = library.make(
        "matmul_primitive_desc_create",
        *(library.engine, library.on(types.source).dense([m, k])),
        library.on("INT8").any_order([k, n]),
        library.on("FP32").dense([1, n]),
        library.on(types.result).dense([m, n]),
        library.attributes(
            post_ops, library.on(types.summand).dense([m, n]), {WEIGHTS: _BY_COLUMN}
        ),
    )
    return Primitive(library, handle)


@dataclass(frozen=True, slots=True)
class AverageWindow:
    """Windows of an average; each list has one entry an axis."""

    kernel: Sequence[int]
    stride: Sequence[int]
    before: Sequence[int] = (0, 0)  # padding
    after: Sequence[int] = (0, 0)
    counts_padding: bool = False  # as integers 0


def average(
    library: OneDnn,
    types: Types,
    shapes: tuple[Sequence[int], Sequence[int]],
    window: AverageWindow,
    post_ops: Sequence[PostOp],
) -> Primitive:
    source, output = shapes
    result, dense = library.on(types.result).images(output), dims([0, 0])
    algorithm = AVERAGE_ALL if window.counts_padding else AVERAGE_VALID
    handle = library.make(
        "pooling_forward_primitive_desc_create",
        *(library.engine, INFERENCE, algorithm),
        *(library.on(types.source).images(source), result),
        *(dims(window.stride), dims(window.kernel), dense),
        *(dims(window.before), dims(window.after)),
        library.attributes(post_ops, result),
    )
    return Primitive(library, handle)


def add(library: OneDnn, types: Types, elements: int, post_ops: Sequence[PostOp]) -> Primitive:
    """Sum of two scaled tensors that lie in memory alike, as does what ``post_ops`` add."""
    summand = library.on(types.summand).dense([elements])
    handle = library.make(
        "binary_primitive_desc_create",
        *(library.engine, BINARY_ADD, library.on(types.source).dense([elements]), summand),
        library.on(types.result).dense([elements]),
        library.attributes(post_ops, summand, {SRC: 0, SRC_1: 0}),
    )
    return Primitive(library, handle)


def with_number(
    library: OneDnn, types: Types, elements: int, post_ops: Sequence[PostOp], *, divide: bool
) -> Primitive:
    """Sum or quotient of each element and one number in FP32."""
    result = library.on(types.result).dense([1, elements])
    handle = library.make(
        "binary_primitive_desc_create",
        *(library.engine, BINARY_DIVIDE if divide else BINARY_ADD),
        library.on(types.source).dense([1, elements]),
        *(library.on("FP32").dense([1, 1]), result),
        library.attributes(post_ops, result),
    )
    return Primitive(library, handle)


def dequantise(library: OneDnn, source: str, elements: int) -> Primitive:
    """FP32 numbers: scale times the difference of each element and a zero point."""
    target = library.on("FP32").dense([elements])
    handle = library.make(
        "reorder_primitive_desc_create",
        *(library.on(source).dense([elements]), library.engine, target, library.engine),
        library.attributes((), target, {SRC: 0}, [SRC]),
    )
    return Primitive(library, handle)
