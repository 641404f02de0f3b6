"""Kernels: one record says which node it computes, whether it fits, how data lie, how it binds.

oneDNN's primitives, and attention and normalisations of the part in C
(engine/cpu/native/vectors.c), in FP32. A node without a record runs in ONNX Runtime.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import NodeProto

from benchmarks.one_graph.model import Type
from benchmarks.one_graph.rules import DOMAIN, attributes_of
from braid.engine.cpu.native.find import find_native
from braid.engine.onednn import floats
from braid.engine.onednn.library import (
    ADD,
    AVERAGE_ALL,
    BIAS,
    DST,
    MANY,
    MAX_POOLING,
    POST_OP,
    SCRATCH,
    SRC,
    SRC_1,
    WEIGHTS,
    Computation,
    ComputationCall,
    NativeCall,
    OneDnn,
    PostOp,
    Primitive,
    Unsupported,
    find_onednn,
)
from braid.engine.runtime.arrays import Array, aligned

_KEYS, _VALUES = 2, 3
_LEAST_ROWS, _UNEVEN = 12, 1.1  # as in engine/cpu/kernels/native_units.py


def library() -> OneDnn:
    found = find_onednn()
    if found is None:
        raise Unsupported("there is no oneDNN")
    return found


@dataclass(frozen=True, slots=True)
class Moving:
    """Data of a value of the graph, some bytes behind its start."""

    value: str
    offset_bytes: int = 0


class Call:
    """One execution; ``moving`` are addressed by the plan, ``fixed`` stay where they are."""

    def __init__(
        self,
        computation: Computation,
        fixed: Mapping[int, Array],
        moving: Mapping[int, Moving],
    ) -> None:
        self._call = ComputationCall(computation, fixed, tuple(moving))
        self.moving = tuple(zip(self._call.moving, moving.values(), strict=True))
        self.words = self._call.words


@dataclass(slots=True)
class Context:
    """What kernels are bound with; packed weights are shared by all shapes of a model."""

    types: Mapping[str, Type]
    constants: Mapping[str, Array]
    packed: dict[str, list[tuple[Primitive, Array]]] = field(default_factory=dict)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.types[name].shape

    def is_float(self, *names: str) -> bool:
        return all(name in self.types and self.types[name].dtype == np.float32 for name in names)

    def weights(self, primitive: Primitive, name: str, array: Array) -> Array:
        """A dense weight in the layout that the primitive asks for."""
        lib, wanted = primitive.library, primitive.layout(WEIGHTS)
        for other, packed in self.packed.setdefault(name, []):
            if lib.same(other.layout(WEIGHTS), wanted):
                return packed
        packed = aligned(lib.size_bytes(wanted))
        lib.reorder(array, wanted, packed)
        self.packed[name].append((primitive, packed))
        return packed


Bind = Callable[[NodeProto, Context, int], list[Call]]


@dataclass(frozen=True, slots=True)
class Record:
    """A kernel. ``images``: activations lie with the channels of a pixel side by side."""

    operators: Sequence[tuple[str, str]]  # domain and name
    fits: Callable[[NodeProto, Context], bool]
    bind: Bind  # for a number of threads; may raise ``Unsupported``
    images: bool = False
    view: bool = False  # the result is where the first operand is


def _plain(functions: Sequence[str]) -> list[PostOp]:
    return [(name, 0.0, 0.0) for name in functions]


def _kept(name: str, context: Context) -> Array:
    return np.ascontiguousarray(context.constants[name])


def _window(node: NodeProto) -> tuple[list[int], list[int], list[int], list[int]]:
    """Strides, dilations, padding before and after."""
    given: Mapping[str, Any] = attributes_of(node)
    pads = list(given.get("pads", [0, 0, 0, 0]))
    ones = [1, 1]
    strides, dilations = list(given.get("strides", ones)), list(given.get("dilations", ones))
    return strides, dilations, pads[:2], pads[2:]


def _is_convolution(node: NodeProto, context: Context) -> bool:
    data, given = node.input[: len(node.input) - 2], attributes_of(node)
    if given.get("auto_pad", b"NOTSET") != b"NOTSET":
        return False
    constant = all(name in context.constants for name in node.input[-2:])
    return constant and all(len(context.shape(name)) == 4 for name in data)


def _convolution(node: NodeProto, context: Context, threads: int) -> list[Call]:
    """Of one operand, or the sum of those of several, whose channels lie one after the other."""
    *data, weight_name, bias_name = node.input
    lib, output, weight = library(), node.output[0], context.constants[weight_name]
    groups: Any = attributes_of(node).get("group", 1)
    window, calls, first = _window(node), list[Call](), 0
    for number, name in enumerate(data):
        channels = context.shape(name)[1] // groups
        part, first = weight[:, first : first + channels], first + channels
        shape = (groups, len(weight) // groups, *part.shape[1:]) if groups > 1 else part.shape
        is_last = number == len(data) - 1
        shapes = context.shape(name), shape, context.shape(output)
        post_ops = [ADD] * (number > 0) + ["relu"] * (is_last and node.domain == DOMAIN)
        bias = "FP32" if is_last else None
        with lib.threads(threads):
            primitive = floats.convolution(lib, shapes, bias, window, _plain(post_ops))
            key = f"{weight_name}[{first - channels}:{first}]"
            array = np.ascontiguousarray(part).reshape(shape)
            fixed = {WEIGHTS: context.weights(primitive, key, array)}
        if is_last:
            fixed[BIAS] = _kept(bias_name, context)
        moving = {SRC: Moving(name), DST: Moving(output)}
        if number:
            moving[POST_OP | SRC_1] = Moving(output)
        calls.append(Call(primitive, fixed, moving))
    return calls


def _pools(node: NodeProto, context: Context) -> bool:
    given: Mapping[str, Any] = attributes_of(node)
    odd = given.get("ceil_mode", 0) or given.get("auto_pad", b"NOTSET") != b"NOTSET"
    shape = context.shape(node.input[0])
    return len(node.output) == 1 and len(shape) == 4 and not odd


def _pooling(node: NodeProto, context: Context, threads: int) -> list[Call]:
    lib, given = library(), dict[str, Any](attributes_of(node))
    shape, result = context.shape(node.input[0]), context.shape(node.output[0])
    is_global = node.op_type == "GlobalAveragePool"
    strides, dilations, before, after = _window(node)
    kernel = shape[2:] if is_global else given["kernel_shape"]
    algorithm = AVERAGE_ALL if is_global else MAX_POOLING
    window = kernel, strides, dilations, before, after
    with lib.threads(threads):
        primitive = floats.pooling(lib, algorithm, (shape, result), window)
    return [Call(primitive, {}, {SRC: Moving(node.input[0]), DST: Moving(node.output[0])})]


def _joins_channels(node: NodeProto, context: Context) -> bool:
    is_images = all(len(context.shape(name)) == 4 for name in node.input)
    return is_images and attributes_of(node)["axis"] == 1


def _concatenation(node: NodeProto, context: Context, threads: int) -> list[Call]:
    lib = library()
    parts = [lib.images(context.shape(name)) for name in node.input]
    with lib.threads(threads):
        primitive = floats.concat(lib, parts, lib.images(context.shape(node.output[0])), 1)
    moving = {MANY + at: Moving(name) for at, name in enumerate(node.input)}
    return [Call(primitive, {}, {**moving, DST: Moving(node.output[0])})]


def _is_linear(node: NodeProto, context: Context) -> bool:
    data, weight, *rest = node.input
    if weight not in context.constants or len(context.shape(weight)) != 2:
        return False
    width = context.shape(weight)[1]
    bias = rest[:1]
    is_flat = all(name in context.constants and context.shape(name) == (width,) for name in bias)
    alike = all(context.shape(name) == context.shape(node.output[0]) for name in rest[1:])
    return is_flat and alike and data not in context.constants


def _linear(node: NodeProto, context: Context, threads: int) -> list[Call]:
    lib, (data, weight_name, *rest) = library(), node.input
    k, n = context.shape(weight_name)
    m = math.prod(context.shape(data)) // k
    gelu = "gelu_tanh" if attributes_of(node).get("approximate") == b"tanh" else "gelu_erf"
    post_ops = {"LinearGelu": [gelu], "LinearAdd": [ADD]}.get(node.op_type, [])
    bias, weight = "FP32" if rest else None, context.constants[weight_name]
    with lib.threads(threads):
        primitive, is_turned = floats.linear(lib, m, k, n, bias, _plain(post_ops))
        name, array = (f"{weight_name}^T", weight.T) if is_turned else (weight_name, weight)
        fixed = {WEIGHTS: context.weights(primitive, name, array)}
    if rest:
        fixed[BIAS] = _kept(rest[0], context)
    moving = {SRC: Moving(data), DST: Moving(node.output[0])}
    if node.op_type == "LinearAdd":
        moving[POST_OP | SRC_1] = Moving(rest[1])
    return [Call(primitive, fixed, moving)]


def _words(*names: str) -> list[tuple[str, type]]:
    return [(name, ctypes.c_int64) for name in names]


class _Rows(ctypes.Structure):
    _fields_ = (
        *(("data_of", ctypes.c_void_p), *_words("kind", "rows", "columns")),
        *(("eps", ctypes.c_double), *_words("activation", "threads")),
    )


class _View(ctypes.Structure):
    _fields_ = _words("offset", "batch", "head", "row", "column")


class _Mask(ctypes.Structure):
    _fields_ = (*_words("kind"), ("fill", ctypes.c_double), ("at", _View))


class _Attention(ctypes.Structure):
    _fields_ = (
        ("data_of", ctypes.c_void_p),
        *_words("batches", "heads", "queries", "keys", "width", "value_width"),
        *((name, _View) for name in ("q", "k", "v", "out")),
        *(("scale", ctypes.c_double), *_words("causal", "zero_hidden", "shared", "masks")),
        *(("mask", _Mask * 4), *_words("threads", "parts")),
    )


def _native() -> Any:
    native = find_native()
    if native is None:
        raise Unsupported("the part in C was not built")
    return native


def _normalises_last(node: NodeProto, context: Context) -> bool:
    given: Mapping[str, Any] = attributes_of(node)
    rank = len(context.shape(node.input[0]))
    constant = all(name in context.constants for name in node.input[1:])
    return given.get("axis", -1) % rank == rank - 1 and constant and len(node.output) == 1


def _layer_norm(node: NodeProto, context: Context, threads: int) -> list[Call]:
    shape, given = context.shape(node.input[0]), dict[str, Any](attributes_of(node))
    eps = given.get("epsilon", 1e-5)
    rows = _Rows(None, 0, math.prod(shape[:-1]), shape[-1], eps, 0, threads)
    call = NativeCall(library(), _native().braid_rows, rows)
    fixed = {
        argument: _kept(name, context)
        for argument, name in zip((WEIGHTS, BIAS), node.input[1:], strict=False)
    }
    return [Call(call, fixed, {SRC: Moving(node.input[0]), DST: Moving(node.output[0])})]


def _attends(node: NodeProto, context: Context) -> bool:
    names = dict(zip(_OPERANDS, node.input, strict=True))
    known = all(names[name] in context.constants for name in ("q_split", "scale"))
    return known and 2 <= len(context.shape(names["mask"])) <= 4


_OPERANDS = ("q", "k", "v", "q_split", "k_split", "v_split", "scale", "mask", "merge")


def _attention(node: NodeProto, context: Context, threads: int) -> list[Call]:
    names = dict(zip(_OPERANDS, node.input, strict=True))
    batches, queries, size = context.shape(names["q"])
    keys = context.shape(names["k"])[1]
    heads, width = map(int, context.constants[names["q_split"]][2:])
    heads, width = (heads, size // heads) if heads > 0 else (size // width, width)
    mask = (*(1,) * (4 - len(context.shape(names["mask"]))), *context.shape(names["mask"]))
    strides = [math.prod(mask[at + 1 :]) * (mask[at] > 1) for at in range(4)]
    by_row, by_key = (_View(0, count * size, width, size, 1) for count in (queries, keys))
    tasks, blocks = batches * heads, math.ceil(queries / _LEAST_ROWS)
    parts = next(
        (
            parts
            for parts in range(1, blocks)
            if math.ceil(tasks * parts / threads) * threads <= _UNEVEN * tasks * parts
        ),
        blocks,
    )
    masks = (_Mask * 4)(_Mask(0, 0.0, _View(0, *strides)))
    scale = float(context.constants[names["scale"]])
    structure = _Attention(
        *(None, batches, heads, queries, keys, width, width, by_row, by_key, by_key, by_row),
        *(scale, 0, 0, 1, 1, masks, threads, parts),
    )
    native = _native()
    scratch = aligned(4 * native.braid_attention_scratch(ctypes.addressof(structure)))
    operands = zip((SRC, _KEYS, _VALUES, MANY), ("q", "k", "v", "mask"), strict=True)
    moving = {argument: Moving(names[name]) for argument, name in operands}
    call = NativeCall(library(), native.braid_attention, structure)
    return [Call(call, {SCRATCH: scratch}, {**moving, DST: Moving(node.output[0])})]


def _views(node: NodeProto, context: Context) -> bool:
    return node.input[0] not in context.constants


def _nothing(node: NodeProto, context: Context, threads: int) -> list[Call]:
    return []


RECORDS = (
    Record(
        [(DOMAIN, "ConvRelu"), (DOMAIN, "ConcatConvRelu"), ("", "Conv")],
        *(_is_convolution, _convolution),
        images=True,
    ),
    Record([("", "MaxPool"), ("", "GlobalAveragePool")], _pools, _pooling, images=True),
    Record([("", "Concat")], _joins_channels, _concatenation, images=True),
    Record(
        [(DOMAIN, name) for name in ("Linear", "LinearGelu", "LinearAdd")] + [("", "MatMul")],
        *(_is_linear, _linear),
    ),
    Record([("", "LayerNormalization")], _normalises_last, _layer_norm),
    Record([(DOMAIN, "Attention")], _attends, _attention),
    Record(
        [("", name) for name in ("Flatten", "Reshape", "Squeeze", "Unsqueeze", "Identity")],
        *(_views, _nothing),
        view=True,
    ),
)


def records_of(node: NodeProto, context: Context) -> Iterator[Record]:
    """Records that fit a node, the preferred one first."""
    if not context.is_float(*node.output):
        return
    for record in RECORDS:
        if (node.domain, node.op_type) in record.operators and record.fits(node, context):
            yield record
