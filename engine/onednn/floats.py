"""oneDNN's primitives on data of the library's type (FP32, BF16), and those that move data.

Sums are in FP32 always. Images lie in channels_last.
"""

import ctypes
from collections.abc import Mapping, Sequence
from contextlib import suppress

from braid.engine.onednn.library import (
    ACTIVATIONS,
    CONVOLUTION_DIRECT,
    DECONVOLUTION_DIRECT,
    INFERENCE,
    NO_SCALES,
    OneDnn,
    PostOp,
    Primitive,
    Unsupported,
    dims,
)

Layout = ctypes.c_void_p  # descriptor of memory, by ``OneDnn.images`` and others


def convolution(
    library: OneDnn,
    shapes: tuple[Sequence[int], Sequence[int], Sequence[int]],
    bias: str | None,
    window: tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]],
    post_ops: Sequence[PostOp],
    *,
    transposed: bool = False,
) -> Primitive:
    """Convolution over channels_last data; ``transposed``: the window slides over the output.

    ``shapes``: of source [n, c, h, w], weights [(groups,) out, c, kh, kw], output. ``window``:
    stride, dilation (1 is dense), padding before and after, of each axis. ``bias``: its type.
    """
    source, weights, output = shapes
    stride, dilation, before, after = window
    result = library.images(output)
    handle = library.make(
        f"{'de' * transposed}convolution_forward_primitive_desc_create",
        library.engine,
        INFERENCE,
        DECONVOLUTION_DIRECT if transposed else CONVOLUTION_DIRECT,
        library.images(source),
        library.any_order(weights),
        None if bias is None else library.on(bias).dense([output[1]]),
        result,
        dims(stride),
        dims([d - 1 for d in dilation]),
        dims(before),
        dims(after),
        library.attributes(post_ops, result),
    )
    return Primitive(library, handle)


def linear(
    library: OneDnn, m: int, k: int, n: int, bias: str | None, post_ops: Sequence[PostOp]
) -> tuple[Primitive, bool]:
    """[m, k] by weights, plus a bias of this type; also whether weights are [n, k], not [k, n]."""
    primitive = _matmul(library, m, k, n, bias, post_ops)
    if primitive.implementation.startswith("gemm"):
        # Without AVX-512 it packs weights in each run: up to 2.6 times the time.
        with suppress(Unsupported):
            return _inner_product(library, m, k, n, bias, post_ops), True
    return primitive, False


def _matmul(
    library: OneDnn, m: int, k: int, n: int, bias: str | None, post_ops: Sequence[PostOp]
) -> Primitive:
    """[m, k] by weights [k, n], plus n numbers of the type ``bias``."""
    result = library.dense([m, n])
    handle = library.make(
        "matmul_primitive_desc_create",
        *(library.engine, library.dense([m, k]), library.any_order([k, n])),
        *(None if bias is None else library.on(bias).dense([1, n]), result),
        library.attributes(post_ops, result),
    )
    return Primitive(library, handle)


def _inner_product(
    library: OneDnn, m: int, k: int, n: int, bias: str | None, post_ops: Sequence[PostOp]
) -> Primitive:
    """The same by weights [n, k]."""
    result = library.dense([m, n])
    handle = library.make(
        "inner_product_forward_primitive_desc_create",
        *(library.engine, INFERENCE, library.dense([m, k]), library.any_order([n, k])),
        *(None if bias is None else library.on(bias).dense([n]), result),
        library.attributes(post_ops, result),
    )
    return Primitive(library, handle)


def pooling(
    library: OneDnn,
    algorithm: int,
    shapes: tuple[Sequence[int], Sequence[int]],
    window: tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int], Sequence[int]],
) -> Primitive:
    """Pooling over channels_last data; ``window``: kernel, stride, dilation, before, after."""
    source, output = shapes
    kernel, stride, dilation, before, after = window
    result = library.images(output)
    handle = library.make(
        "pooling_forward_primitive_desc_create",
        library.engine,
        INFERENCE,
        algorithm,
        library.images(source),
        result,
        dims(stride),
        dims(kernel),
        dims([d - 1 for d in dilation]),
        dims(before),
        dims(after),
        library.attributes((), result),
    )
    return Primitive(library, handle)


def resampling(
    library: OneDnn,
    algorithm: int,
    shapes: tuple[Sequence[int], Sequence[int]],
    post_ops: Sequence[PostOp],
) -> Primitive:
    """Resizing of channels_last data, with the middles of pixels for coordinates."""
    source, result = (library.images(shape) for shape in shapes)
    handle = library.make(
        "resampling_forward_primitive_desc_create",
        *(library.engine, INFERENCE, algorithm, None, source, result),
        library.attributes(post_ops, result),
    )
    return Primitive(library, handle)


def batched_matmul(
    library: OneDnn, shapes: Sequence[Sequence[int]], post_ops: Sequence[PostOp]
) -> Primitive:
    """Product of matrices in dense tensors of one rank; ``shapes``: of both, and of the result."""
    left, right, result = (library.dense(shape) for shape in shapes)
    handle = library.make(
        "matmul_primitive_desc_create",
        *(library.engine, left, right, None, result, library.attributes(post_ops, result)),
    )
    return Primitive(library, handle)


def concat(library: OneDnn, parts: Sequence[Layout], output: Layout, axis: int) -> Primitive:
    sources = (ctypes.c_void_p * len(parts))(*[part.value for part in parts])
    handle = library.make(
        "concat_primitive_desc_create",
        *(library.engine, output, len(parts), axis, sources, library.attributes((), output)),
    )
    return Primitive(library, handle)


def binary(
    library: OneDnn,
    algorithm: int,
    layouts: tuple[Layout, Layout, Layout],
    post_ops: Sequence[PostOp],
    scales: Mapping[int, int] = NO_SCALES,
) -> Primitive:
    """Sum, product, ... of two tensors; the second one is repeated along its axes of extent 1."""
    attributes = library.attributes(post_ops, layouts[2], scales)
    handle = library.make(
        "binary_primitive_desc_create", *(library.engine, algorithm, *layouts, attributes)
    )
    return Primitive(library, handle)


def elementwise(library: OneDnn, elements: int, function: PostOp) -> Primitive:
    flat, (name, alpha, beta) = library.dense([elements]), function
    handle = library.make(
        "eltwise_forward_primitive_desc_create",
        *(library.engine, INFERENCE, ACTIVATIONS[name], flat, flat),
        *(ctypes.c_float(alpha), ctypes.c_float(beta), library.attributes((), flat)),
    )
    return Primitive(library, handle)


def slice_of_channels(library: OneDnn, shape: Sequence[int], channels: int) -> Primitive:
    """Copy images [n, c, h, w] out of images with ``channels`` channels, from their start."""
    n, c, h, w = shape
    strides = h * w * channels, 1, w * channels, channels
    source = library.strided((n, c, h, w), strides)
    return library.copy(source, library.images(shape))


def slice_of_columns(library: OneDnn, rows: int, columns: int, width: int) -> Primitive:
    """Copy [rows, columns] out of rows of ``width``, from their start."""
    source = library.strided((rows, columns), (width, 1))
    return library.copy(source, library.dense([rows, columns]))


def cast(library: OneDnn, elements: int, source: str) -> Primitive:
    return library.copy(library.on(source).dense([elements]), library.dense([elements]))
