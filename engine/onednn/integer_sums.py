"""oneDNN's primitives on 8-bit integers whose zero point or scale is found in the data.

    sums = weights * (source - zero point), in 32 bits        integers = data / scale + zero point

Scale and zero point are arguments of a call, as the data is.
"""

from collections.abc import Sequence

from braid.engine.onednn.library import (
    ADD,
    BINARY_DIVIDE,
    CONVOLUTION_DIRECT,
    INFERENCE,
    SRC,
    OneDnn,
    PostOp,
    Primitive,
    dims,
)


def convolution(
    library: OneDnn,
    source_type: str,
    shapes: tuple[Sequence[int], Sequence[int], Sequence[int]],
    window: tuple[Sequence[int], Sequence[int], Sequence[int]],
) -> Primitive:
    """Convolution over channels_last data; shapes and window as in integers.py."""
    source, weights, output = shapes
    stride, dilation, padding = window
    result = library.on("INT32").images(output)
    handle = library.make(
        "convolution_forward_primitive_desc_create",
        *(library.engine, INFERENCE, CONVOLUTION_DIRECT),
        library.on(source_type).images(source),
        library.on("INT8").any_order(weights),
        None,
        result,
        *(dims(stride), dims([d - 1 for d in dilation]), dims(padding), dims(padding)),
        library.attributes((), result, zeros=[SRC]),
    )
    return Primitive(library, handle)


def matmul(library: OneDnn, source_type: str, m: int, k: int, n: int) -> Primitive:
    """[m, k] by weights [k, n]."""
    result = library.on("INT32").dense([m, n])
    handle = library.make(
        "matmul_primitive_desc_create",
        *(library.engine, library.on(source_type).dense([m, k])),
        *(library.on("INT8").any_order([k, n]), None, result),
        library.attributes((), result, zeros=[SRC]),
    )
    return Primitive(library, handle)


def quantise(library: OneDnn, result_type: str, elements: int) -> Primitive:
    """Quotient of FP32 data and one number, rounded half to even, plus another number."""
    number = library.on("FP32").dense([1, 1])
    steps: list[PostOp] = [("round", 0.0, 0.0), (ADD, 0.0, 0.0)]
    handle = library.make(
        "binary_primitive_desc_create",
        *(library.engine, BINARY_DIVIDE, library.on("FP32").dense([1, elements]), number),
        *(library.on(result_type).dense([1, elements]), library.attributes(steps, number)),
    )
    return Primitive(library, handle)
