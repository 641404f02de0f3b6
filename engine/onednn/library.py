"""oneDNN through its C API: primitives made once per shape and executed with nothing in between.

    Functions ──> OneDnn ──convolution, matmul, pooling, ...──> Primitive ──> Run

torch calls oneDNN too, but describes and looks up the primitive again at each call, which costs
some 35 us of CPU time (docs/decisions/0008-onednn.md); that is more than many a kernel. Here all of
it happens when a unit is bound: a call sets data pointers and executes.

A primitive is made for a number of threads and must be executed by a thread whose OpenMP team has
that size. Which library it is, functions.py says.
"""

from __future__ import annotations

import copy
import ctypes
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import distribution
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from braid.engine.onednn.functions import PACKAGE, Functions, find_functions

Run = Callable[..., Tensor | tuple[Tensor, ...]]

# Argument indices and enumerators of dnnl_types.h; stable within major version 3.
SRC, SRC_1, DST, WEIGHTS, BIAS, MANY, POST_OP = 1, 2, 17, 33, 41, 1024, 32768
SCALES, ZERO_POINT = 4096, 8192
_SCRATCH, _SCRATCH_OF_CALLER = 80, 1
_CPU, _IN_ORDER, _INFERENCE, _ANY = 1, 1, 96, 1
_CONVOLUTION_DIRECT, _BINARY_ADD = 0x1, 0x1FFF0
_IMPLEMENTATION, _ARGUMENT = 8, 255
MAX_POOLING, AVERAGE_ALL, AVERAGE_VALID = 0x1FF, 0x2FF, 0x3FF

DTYPES = frozenset({torch.bfloat16, torch.float32})
"""Types of data that units are on; primitives sum in fp32 always."""

_TYPES = {
    torch.float16: 1, torch.bfloat16: 2, torch.float32: 3, torch.int32: 4, torch.int8: 5,
    torch.uint8: 6,
}  # fmt: skip

ADD = "add"

ACTIVATIONS = {
    name: 0x20 + number
    for number, name in enumerate(
        (
            *("relu", "tanh", "elu", "square", "abs", "sqrt", "linear", "soft_relu"),
            *("hardsigmoid", "logistic", "exp", "gelu_tanh", "swish", "log", "clip", "clip_v2"),
            *("pow", "gelu_erf", "round", "mish", "hardswish"),
        )
    )
}
"""oneDNN's names of elementwise functions; each takes two numbers, alpha and beta."""

NO_SCALES: Mapping[int, int] = MappingProxyType({})

PostOp = tuple[str, float, float]
"""An elementwise function with alpha and beta, or ``("add", 0, 0)``: a tensor of the output's
shape, the argument ``POST_OP * (position + 1) | SRC_1``."""

_Pointer = ctypes.c_void_p
_Dims = ctypes.c_int64 * 12


class _Argument(ctypes.Structure):
    _fields_ = (("arg", ctypes.c_int), ("memory", _Pointer))


class Unsupported(Exception):
    """oneDNN has no fast kernel for this; another variant must run the unit."""


def dims(extents: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    """Extents as oneDNN takes them."""
    return _Dims(*extents)


class OneDnn:
    """The library, with one engine for the CPU."""

    def __init__(self, functions: Functions) -> None:
        """Use ``functions``, of a library of major version 3."""
        self._c = functions.by_name  # these release the interpreter lock
        self.dtype = torch.float32
        self._views: dict[torch.dtype, OneDnn] = {}
        self._c.dnnl_primitive_desc_query_md.restype = _Pointer
        self._c.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
        self.execute = self._c.dnnl_primitive_execute
        self.execute.argtypes = [_Pointer, _Pointer, ctypes.c_int, _Pointer]
        self.set_handle = functions.set_handle
        self.set_handle.argtypes = [_Pointer, _Pointer]
        self.engine = self.make("engine_create", _CPU, ctypes.c_size_t(0))

    def on(self, dtype: torch.dtype) -> OneDnn:
        """The library for primitives on data of this type; this one is for fp32."""
        if dtype == self.dtype:
            return self
        if dtype not in self._views:
            view = self._views[dtype] = copy.copy(self)
            view.dtype = dtype
        return self._views[dtype]

    def make(self, function: str, *arguments: Any) -> _Pointer:
        """Call ``dnnl_<function>(&made, *arguments)`` and return what was made.

        Raises:
            Unsupported: the library refuses.
        """
        made = _Pointer()
        status = getattr(self._c, f"dnnl_{function}")(ctypes.byref(made), *arguments)
        if status:
            raise Unsupported(f"{function} answered {status}")
        return made

    def owned(self, owner: object, kind: str, handle: _Pointer) -> _Pointer:
        """Destroy ``handle`` when ``owner`` is gone."""
        destroy, bare = getattr(self._c, f"dnnl_{kind}_destroy"), _Pointer(handle.value)
        weakref.finalize(owner, destroy, bare).atexit = False
        return handle

    @contextmanager
    def threads(self, count: int) -> Iterator[None]:
        """Make primitives for this many threads."""
        before = self._c.omp_get_max_threads()
        self._c.omp_set_num_threads(count)
        try:
            yield
        finally:
            self._c.omp_set_num_threads(before)

    # -- descriptions: each gives a primitive descriptor -----------------------------------------

    def convolution(
        self,
        shapes: tuple[Sequence[int], Sequence[int], Sequence[int]],
        bias: Tensor | None,
        window: tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]],
        post_ops: Sequence[PostOp],
    ) -> Primitive:
        """Convolution over channels_last data.

        Args:
            shapes: of source [n, c, h, w], weights [(groups,) out, c, kh, kw], output.
            bias: what is added, of any type.
            window: stride, dilation (1 is dense), padding before and after, of each axis.
            post_ops: what follows in the same pass.
        """
        source, weights, output = shapes
        stride, dilation, before, after = window
        result = self.images(output)
        handle = self.make(
            "convolution_forward_primitive_desc_create",
            self.engine,
            _INFERENCE,
            _CONVOLUTION_DIRECT,
            self.images(source),
            self.any_order(weights),
            None if bias is None else self.like(bias, [output[1]]),
            result,
            _Dims(*stride),
            _Dims(*[d - 1 for d in dilation]),
            _Dims(*before),
            _Dims(*after),
            self.attributes(post_ops, result),
        )
        return Primitive(self, handle)

    def matmul(
        self, m: int, k: int, n: int, bias: Tensor | None, post_ops: Sequence[PostOp]
    ) -> Primitive:
        """[m, k] by weights [k, n], plus ``bias``, which has n elements of any type."""
        result = self.dense([m, n])
        handle = self.make(
            "matmul_primitive_desc_create",
            *(self.engine, self.dense([m, k]), self.any_order([k, n])),
            *(None if bias is None else self.like(bias, [1, n]), result),
            self.attributes(post_ops, result),
        )
        return Primitive(self, handle)

    def pooling(
        self,
        algorithm: int,
        shapes: tuple[Sequence[int], Sequence[int]],
        window: tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int], Sequence[int]],
    ) -> Primitive:
        """Pooling over channels_last data; ``window``: kernel, stride, dilation, before, after."""
        source, output = shapes
        kernel, stride, dilation, before, after = window
        result = self.images(output)
        handle = self.make(
            "pooling_forward_primitive_desc_create",
            self.engine,
            _INFERENCE,
            algorithm,
            self.images(source),
            result,
            _Dims(*stride),
            _Dims(*kernel),
            _Dims(*[d - 1 for d in dilation]),
            _Dims(*before),
            _Dims(*after),
            self.attributes((), result),
        )
        return Primitive(self, handle)

    def concat(self, shapes: Sequence[Sequence[int]], output: Sequence[int]) -> Primitive:
        """Join channels_last data along the channels."""
        parts = [self.images(shape) for shape in shapes]  # alive until the call is over
        sources = (_Pointer * len(parts))(*[part.value for part in parts])
        result = self.images(output)
        handle = self.make(
            "concat_primitive_desc_create",
            *(self.engine, result, len(shapes), 1, sources, self.attributes((), result)),
        )
        return Primitive(self, handle)

    def add(
        self, elements: int, post_ops: Sequence[PostOp], scales: Mapping[int, int] = NO_SCALES
    ) -> Primitive:
        """Sum of two tensors that lie in memory alike."""
        flat = self.dense([elements])
        attributes = self.attributes(post_ops, flat, scales)
        handle = self.make(
            "binary_primitive_desc_create",
            *(self.engine, _BINARY_ADD, flat, flat, flat, attributes),
        )
        return Primitive(self, handle)

    def elementwise(self, elements: int, function: PostOp, post_ops: Sequence[PostOp]) -> Primitive:
        """An elementwise function."""
        flat, (name, alpha, beta) = self.dense([elements]), function
        handle = self.make(
            "eltwise_forward_primitive_desc_create",
            *(self.engine, _INFERENCE, ACTIVATIONS[name], flat, flat),
            *(ctypes.c_float(alpha), ctypes.c_float(beta), self.attributes(post_ops, flat)),
        )
        return Primitive(self, handle)

    def slice_of_channels(self, shape: Sequence[int], channels: int) -> Primitive:
        """Copy images [n, c, h, w] out of images with ``channels`` channels, from their start."""
        n, c, h, w = shape
        strides = _Dims(h * w * channels, 1, w * channels, channels)
        source = self._strided((n, c, h, w), strides)
        return self._copy(source, self.images(shape))

    def slice_of_images(
        self,
        shape: Sequence[int],
        output: Sequence[int],
        first: Sequence[int],
        every: Sequence[int],
    ) -> tuple[Primitive, int]:
        """Copy images out of images, both in channels_last.

        Args:
            shape: of the source.
            output: of what is copied.
            first: element along each axis ...
            every: ... and the distance to the next one.

        Returns:
            The copy, and the bytes from the start of the source to what it reads first.
        """
        _, c, h, w = shape
        strides = h * w * c, 1, w * c, c
        offset = sum(stride * start for stride, start in zip(strides, first, strict=True))
        apart = [stride * step for stride, step in zip(strides, every, strict=True)]
        source = self._strided(output, _Dims(*apart))
        size = self.dtype.itemsize
        return self._copy(source, self.images(output)), size * offset

    def slice_of_columns(self, rows: int, columns: int, width: int) -> Primitive:
        """Copy [rows, columns] out of rows of ``width``, from their start."""
        source = self._strided((rows, columns), _Dims(width, 1))
        return self._copy(source, self.dense([rows, columns]))

    def cast(self, elements: int, source: torch.dtype) -> Primitive:
        """Convert elements of type ``source``, in any order."""
        return self._copy(self.on(source).dense([elements]), self.dense([elements]))

    def _copy(self, source: _Pointer, target: _Pointer) -> Primitive:
        handle = self.make(
            "reorder_primitive_desc_create",
            *(source, self.engine, target, self.engine, self.attributes((), target)),
        )
        return Primitive(self, handle)

    def reorder(self, tensor: Tensor, target: _Pointer) -> Tensor:
        """``tensor``, dense, in the layout and type of the descriptor ``target``; its bytes."""
        primitive = self._copy(self.like(tensor, tensor.shape), target)
        packed = torch.empty(self.size_bytes(target), dtype=torch.uint8)
        primitive.launcher({SRC: tensor.contiguous(), DST: packed}, ())()
        return packed

    def same(self, left: _Pointer, right: _Pointer) -> bool:
        """Whether two descriptors mean the same layout."""
        return bool(self._c.dnnl_memory_desc_equal(left, right))

    def argument(self, description: _Pointer, argument: int) -> _Pointer:
        """Layout of one argument of a primitive, valid as long as its description."""
        return _Pointer(self._c.dnnl_primitive_desc_query_md(description, _ARGUMENT, argument))

    def size_bytes(self, layout: _Pointer) -> int:
        """Bytes of memory that a layout takes."""
        return int(self._c.dnnl_memory_desc_get_size(layout)) if layout.value else 0

    def memory(self, layout: _Pointer) -> _Pointer:
        """A memory object without data."""
        return self.make("memory_create", layout, self.engine, None)

    def stream(self) -> _Pointer:
        """A stream to execute on: the calling thread and its team."""
        return self.make("stream_create", self.engine, _IN_ORDER)

    def implementation(self, description: _Pointer) -> str:
        """Name of the kernel behind a description, e.g. ``brgconv:avx512_core``."""
        name = ctypes.c_char_p()
        self._c.dnnl_primitive_desc_query(
            description, _IMPLEMENTATION, ctypes.c_int(0), ctypes.byref(name)
        )
        return (name.value or b"").decode()

    # Descriptors and attributes are a few hundred bytes and copied by what is made of them.

    def _described(self, function: str, *arguments: Any) -> _Pointer:
        made = self.make(function, *arguments)
        return self.owned(made, "memory_desc", made)

    def like(self, tensor: Tensor, shape: Sequence[int]) -> _Pointer:
        """Dense data of this shape, of the type of ``tensor``."""
        return self.on(tensor.dtype).dense(shape)

    def images(self, shape: Sequence[int]) -> _Pointer:
        """Layout of images [n, c, h, w] in channels_last."""
        _, c, h, w = shape
        return self._strided(shape, _Dims(h * w * c, 1, w * c, c))

    def _strided(self, shape: Sequence[int], strides: Any) -> _Pointer:
        return self._described(
            *("memory_desc_create_with_strides", len(shape), _Dims(*shape)),
            *(_TYPES[self.dtype], strides),
        )

    def dense(self, shape: Sequence[int]) -> _Pointer:
        """Row-major layout."""
        strides = [1] * len(shape)
        for axis in reversed(range(len(shape) - 1)):
            strides[axis] = strides[axis + 1] * shape[axis + 1]
        return self._strided(shape, _Dims(*strides))

    def any_order(self, shape: Sequence[int]) -> _Pointer:
        """A layout that the primitive chooses."""
        extents, dtype = dims(shape), _TYPES[self.dtype]
        return self._described("memory_desc_create_with_tag", len(shape), extents, dtype, _ANY)

    def attributes(
        self,
        post_ops: Sequence[PostOp],
        summand: _Pointer,
        scales: Mapping[int, int] = NO_SCALES,
        zeros: Sequence[int] = (),
    ) -> _Pointer:
        """Attributes of a primitive, whose scratch memory the caller gives.

        Args:
            post_ops: what follows in the same pass.
            summand: layout of what ``ADD`` adds.
            scales: argument -> mask of the axes along which its scales lie.
            zeros: arguments with a zero point.
        """
        made = self.make("primitive_attr_create")
        self.owned(made, "primitive_attr", made)
        self._c.dnnl_primitive_attr_set_scratchpad_mode(made, _SCRATCH_OF_CALLER)
        for argument, mask in scales.items():
            if self._c.dnnl_primitive_attr_set_scales_mask(made, argument, mask):
                raise Unsupported(f"no scales for argument {argument}")
        for argument in zeros:
            if self._c.dnnl_primitive_attr_set_zero_points_mask(made, argument, 0):
                raise Unsupported(f"no zero point for argument {argument}")
        if not post_ops:
            return made
        chain = self.make("post_ops_create")
        self.owned(chain, "post_ops", chain)
        for name, alpha, beta in post_ops:
            if name == ADD:
                status = self._c.dnnl_post_ops_append_binary(chain, _BINARY_ADD, summand)
            else:
                numbers = ctypes.c_float(alpha), ctypes.c_float(beta)
                status = self._c.dnnl_post_ops_append_eltwise(chain, ACTIVATIONS[name], *numbers)
            if status:
                raise Unsupported(f"{name} cannot be fused")
        self._c.dnnl_primitive_attr_set_post_ops(made, chain)
        return made


class Primitive:
    """One computation on data of fixed shapes, for one thread count. One caller at a time."""

    def __init__(self, library: OneDnn, description: _Pointer) -> None:
        """Take over ``description``; compiles the kernel, unless the library has it already.

        Raises:
            Unsupported: there is only the slow reference kernel for it.
        """
        self.library = library
        self.description = library.owned(self, "primitive_desc", description)
        self.implementation = library.implementation(description)
        if self.implementation.startswith(("ref", "gemm:ref")):
            raise Unsupported(f"only {self.implementation}")
        self._handle = library.owned(
            self, "primitive", library.make("primitive_create", description)
        )
        self._stream = library.owned(self, "stream", library.stream())
        self.handles = (self._handle.value or 0, self._stream.value or 0)
        self._scratch: Tensor | None = None

    def layout(self, argument: int) -> _Pointer:
        """Layout that an argument must have."""
        return self.library.argument(self.description, argument)

    def launcher(self, fixed: Mapping[int, Tensor], moving: Sequence[int]) -> Callable[..., None]:
        """A function that takes the tensors of ``moving``, in this order, and executes."""
        call = PrimitiveCall(self, fixed, moving)
        handle, stream, count, arguments = call.words
        handles, set_handle, execute = call.moving, self.library.set_handle, self.library.execute

        def launch(*tensors: Any, kept: PrimitiveCall = call) -> None:
            for memory, tensor in zip(handles, tensors, strict=True):
                set_handle(memory, tensor.data_ptr())
            if status := execute(handle, stream, count, arguments):
                raise RuntimeError(f"oneDNN answered {status} to a call")

        return launch

    def scratch(self) -> Tensor:
        """Scratch memory of an execution; empty if it needs none."""
        if self._scratch is None:
            size = self.library.size_bytes(self.layout(_SCRATCH))
            self._scratch = torch.empty(size, dtype=torch.uint8)
        return self._scratch


class PrimitiveCall:
    """A primitive with a memory object for each of its arguments.

    Calls of one primitive share its scratch memory: they must not run at the same time.
    """

    def __init__(
        self, primitive: Primitive, fixed: Mapping[int, Tensor], moving: Sequence[int]
    ) -> None:
        """Make memory objects.

        Args:
            primitive: what is called.
            fixed: argument -> data that stays where it is; kept alive.
            moving: arguments whose data is named later.
        """
        library, given = primitive.library, dict(fixed)
        if primitive.scratch().numel():
            given[_SCRATCH] = primitive.scratch()
        indices = [*given, *moving]
        layouts = [
            primitive.layout(i)
            if not SCALES <= i < POST_OP
            else library.like(given[i], given[i].shape)
            if i in given
            else library.on(torch.int32 if i & ZERO_POINT else torch.float32).dense([1])
            for i in indices
        ]
        memories = [library.owned(self, "memory", library.memory(layout)) for layout in layouts]
        for memory, tensor in zip(memories, given.values(), strict=False):
            library.set_handle(memory, tensor.data_ptr())
        self._kept = primitive, tuple(given.values())
        self._arguments = (_Argument * len(indices))(
            *[_Argument(*pair) for pair in zip(indices, memories, strict=True)]
        )
        self.moving = tuple(memory.value or 0 for memory in memories[len(given) :])
        """Memory objects of the moving arguments, in order."""
        self.words = (*primitive.handles, len(indices), ctypes.addressof(self._arguments))
        """What dnnl_primitive_execute takes: primitive, stream, count, address of arguments."""


def onednn_version() -> str:
    """Version of the package in use, or ``none``."""
    return "none" if find_functions() is None else distribution(PACKAGE).version


@cache
def find_onednn() -> OneDnn | None:
    """The library, if there is one here."""
    functions = find_functions()
    return None if functions is None else OneDnn(functions)
