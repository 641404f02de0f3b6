"""oneDNN through its C API: primitives made once per shape and executed with nothing in between.

    Functions ──> OneDnn ──convolution, matmul, pooling, ...──> Primitive ──> ComputationCall

torch calls oneDNN too, but describes and looks up the primitive again at each call, which costs
some 35 us of CPU time (docs/decisions/0008-onednn.md); that is more than many a kernel. Here all of
it happens when a unit is bound: a call sets data pointers and executes.

Data are arrays of numpy, or addresses; types have the names of the Open Inference Protocol.
A primitive is made for a number of threads and must be executed by a thread whose OpenMP team has
that size. Which library it is, functions.py says.
"""

from __future__ import annotations

import copy
import ctypes
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import distribution
from types import MappingProxyType
from typing import Any

import numpy as np

from braid.engine.onednn.functions import PACKAGE, Functions, find_functions
from braid.engine.runtime.arrays import Array, address_of, aligned, dtype_of, strides_of

# Argument indices and enumerators of dnnl_types.h; stable within major version 3.
SRC, SRC_1, DST, WEIGHTS, BIAS, MANY, POST_OP = 1, 2, 17, 33, 41, 1024, 32768
SCALES, ZERO_POINT = 4096, 8192
SCRATCH, _SCRATCH_OF_CALLER = 80, 1
_CPU, _IN_ORDER, _ANY = 1, 1, 1
_OUT_OF_MEMORY = 1  # dnnl_status_t
REFUSED = 100  # a computation of our own met a value that it cannot use
INFERENCE, CONVOLUTION_DIRECT, DECONVOLUTION_DIRECT = 96, 0x1, 0xA
BINARY_ADD, BINARY_MULTIPLY, BINARY_MAX, BINARY_MIN, BINARY_DIVIDE, BINARY_SUBTRACT = range(
    0x1FFF0, 0x1FFF6
)
_IMPLEMENTATION, _ARGUMENT = 8, 255
MAX_POOLING, AVERAGE_ALL, AVERAGE_VALID = 0x1FF, 0x2FF, 0x3FF
NEAREST, LINEAR = 0x2FFF0, 0x2FFF1

DTYPES = frozenset({"BF16", "FP32"})  # of data; primitives sum in fp32 always

_TYPES = {"FP16": 1, "BF16": 2, "FP32": 3, "INT32": 4, "INT8": 5, "UINT8": 6}

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
    return _Dims(*extents)


class OneDnn:
    """The library, with one engine for the CPU."""

    def __init__(self, functions: Functions) -> None:
        self._c = functions.by_name  # these release the interpreter lock
        self.dtype = "FP32"
        self._views: dict[str, OneDnn] = {}
        self._c.dnnl_primitive_desc_query_md.restype = _Pointer
        self._c.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
        self.execute = self._c.dnnl_primitive_execute
        self.execute.argtypes = [_Pointer, _Pointer, ctypes.c_int, _Pointer]
        self.data_of = self._c.dnnl_memory_get_data_handle
        self.set_handle = functions.set_handle
        self.set_handle.argtypes = [_Pointer, _Pointer]
        self.engine = self.make("engine_create", _CPU, ctypes.c_size_t(0))

    def on(self, dtype: str) -> OneDnn:
        """The library for primitives on data of this type; this one is for fp32."""
        if dtype == self.dtype:
            return self
        if dtype not in self._views:
            view = self._views[dtype] = copy.copy(self)
            view.dtype = dtype
        return self._views[dtype]

    def make(self, function: str, *arguments: Any) -> _Pointer:
        """Call ``dnnl_<function>(&made, *arguments)`` and return what was made.

        Raises ``Unsupported`` if the library refuses, ``MemoryError`` if it found no memory.
        """
        handle = _Pointer()
        status = getattr(self._c, f"dnnl_{function}")(ctypes.byref(handle), *arguments)
        if status == _OUT_OF_MEMORY:
            raise MemoryError(f"oneDNN answered {status} to {function}")
        if status:
            raise Unsupported(f"{function} answered {status}")
        return handle

    def owned(self, owner: object, kind: str, handle: _Pointer) -> _Pointer:
        """Destroy ``handle`` when ``owner`` is gone."""
        destroy, bare = getattr(self._c, f"dnnl_{kind}_destroy"), _Pointer(handle.value)
        weakref.finalize(owner, destroy, bare).atexit = False
        return handle

    def team(self) -> int:
        """Threads of the calling thread's team."""
        return int(self._c.omp_get_max_threads())

    @contextmanager
    def threads(self, count: int) -> Iterator[None]:
        before = self.team()
        self._c.omp_set_num_threads(count)
        try:
            yield
        finally:
            self._c.omp_set_num_threads(before)

    def copy(self, source: _Pointer, target: _Pointer) -> Primitive:
        """Copy data from one layout into another one, and convert it."""
        handle = self.make(
            "reorder_primitive_desc_create",
            *(source, self.engine, target, self.engine, self.attributes((), target)),
        )
        return Primitive(self, handle)

    def reorder(self, array: Array, target: _Pointer, packed: Array) -> None:
        """Write ``array`` to bytes, in the layout and type of the descriptor ``target``."""
        try:
            primitive = self.copy(self.like(array), target)
        except Unsupported:  # from such strides
            array = np.ascontiguousarray(array)
            primitive = self.copy(self.like(array), target)
        primitive.launcher({SRC: array, DST: packed}, ())()

    def same(self, left: _Pointer, right: _Pointer) -> bool:
        return bool(self._c.dnnl_memory_desc_equal(left, right))

    def argument(self, description: _Pointer, argument: int) -> _Pointer:
        """Layout of one argument of a primitive, valid as long as its description."""
        return _Pointer(self._c.dnnl_primitive_desc_query_md(description, _ARGUMENT, argument))

    def size_bytes(self, layout: _Pointer) -> int:
        return int(self._c.dnnl_memory_desc_get_size(layout)) if layout.value else 0

    def memory(self, layout: _Pointer) -> _Pointer:
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
        description = self.make(function, *arguments)
        return self.owned(description, "memory_desc", description)

    def like(self, array: Array) -> _Pointer:
        steps = [distance // array.itemsize for distance in array.strides]
        return self.on(dtype_of(array)).strided(array.shape, steps)

    def images(self, shape: Sequence[int]) -> _Pointer:
        """Layout of images [n, c, h, w] in channels_last."""
        return self.strided(shape, strides_of(shape, images=True))

    def strided(self, shape: Sequence[int], strides: Sequence[int]) -> _Pointer:
        """Layout with these distances between elements along each axis."""
        return self._described(
            *("memory_desc_create_with_strides", len(shape), dims(shape)),
            *(_TYPES[self.dtype], dims(strides)),
        )

    def dense(self, shape: Sequence[int]) -> _Pointer:
        return self.strided(shape, strides_of(shape))

    def any_order(self, shape: Sequence[int]) -> _Pointer:
        extents, dtype = dims(shape), _TYPES[self.dtype]
        return self._described("memory_desc_create_with_tag", len(shape), extents, dtype, _ANY)

    def attributes(
        self,
        post_ops: Sequence[PostOp],
        summand: _Pointer,
        scales: Mapping[int, int] = NO_SCALES,
        zeros: Sequence[int] = (),
    ) -> _Pointer:
        """``summand``: layout of what ``ADD`` adds; ``scales``: argument -> mask of their axes."""
        handle = self.make("primitive_attr_create")
        self.owned(handle, "primitive_attr", handle)
        self._c.dnnl_primitive_attr_set_scratchpad_mode(handle, _SCRATCH_OF_CALLER)
        for argument, mask in scales.items():
            if self._c.dnnl_primitive_attr_set_scales_mask(handle, argument, mask):
                raise Unsupported(f"no scales for argument {argument}")
        for argument in zeros:
            if self._c.dnnl_primitive_attr_set_zero_points_mask(handle, argument, 0):
                raise Unsupported(f"no zero point for argument {argument}")
        if not post_ops:
            return handle
        chain = self.make("post_ops_create")
        self.owned(chain, "post_ops", chain)
        for name, alpha, beta in post_ops:
            if name == ADD:
                status = self._c.dnnl_post_ops_append_binary(chain, BINARY_ADD, summand)
            else:
                numbers = ctypes.c_float(alpha), ctypes.c_float(beta)
                status = self._c.dnnl_post_ops_append_eltwise(chain, ACTIVATIONS[name], *numbers)
            if status:
                raise Unsupported(f"{name} cannot be fused")
        self._c.dnnl_primitive_attr_set_post_ops(handle, chain)
        return handle


class Computation(ABC):
    """A primitive, or a function called like one, on memory objects. One caller at a time."""

    library: OneDnn
    execute: Any  # function of a primitive, a stream, and the number and address of arguments
    handles: tuple[int, int]  # the first two that it takes

    @abstractmethod
    def layout(self, argument: int) -> _Pointer: ...

    def scratch(self) -> Array:
        """Scratch memory of an execution; empty if it needs none."""
        return np.empty(0, np.uint8)

    def refuse(self) -> None:
        """Raise ``InvalidRequest`` if the latest execution met a value that it could not use."""
        return

    def launcher(self, fixed: Mapping[int, Array], moving: Sequence[int]) -> Callable[..., None]:
        """A function that takes the addresses of ``moving``, in this order, and executes."""
        call = ComputationCall(self, fixed, moving)
        _, handle, stream, count, arguments = call.words
        handles, set_handle, execute = call.moving, self.library.set_handle, self.execute

        def launch(*addresses: int, kept: ComputationCall = call) -> None:
            for memory, address in zip(handles, addresses, strict=True):
                set_handle(memory, address)
            if status := execute(handle, stream, count, arguments):
                if status == REFUSED:
                    self.refuse()
                raise RuntimeError(f"oneDNN answered {status} to a call")

        return launch


class Primitive(Computation):
    """One computation on data of fixed shapes, for one thread count."""

    def __init__(self, library: OneDnn, description: _Pointer) -> None:
        """Compile the kernel, unless the library has it; ``Unsupported`` for the slow reference."""
        self.library, self.execute = library, library.execute
        self.description = library.owned(self, "primitive_desc", description)
        self.implementation = library.implementation(description)
        if self.implementation.startswith(("ref", "gemm:ref")):
            raise Unsupported(f"only {self.implementation}")
        self._handle = library.owned(
            self, "primitive", library.make("primitive_create", description)
        )
        self._stream = library.owned(self, "stream", library.stream())
        self.handles = (self._handle.value or 0, self._stream.value or 0)
        self._scratch: Array | None = None

    def layout(self, argument: int) -> _Pointer:
        return self.library.argument(self.description, argument)

    def scratch(self) -> Array:
        if self._scratch is None:
            self._scratch = aligned(self.library.size_bytes(self.layout(SCRATCH)))
        return self._scratch


class NativeCall(Computation):
    """A function of the part in C that is called as a primitive is; ``structure`` is its own."""

    def __init__(self, library: OneDnn, execute: object, structure: Any) -> None:
        structure.data_of = ctypes.cast(library.data_of, ctypes.c_void_p).value
        self.library, self.execute = library, execute
        self.structure = structure
        self._any = library.dense([1])  # of each argument only the address is read
        self.handles = ctypes.addressof(structure), 0

    def layout(self, argument: int) -> ctypes.c_void_p:
        return self._any


class ComputationCall:
    """Calls of one computation share its scratch memory: they must not run at the same time."""

    def __init__(
        self, computation: Computation, fixed: Mapping[int, Array], moving: Sequence[int]
    ) -> None:
        """``fixed``: argument -> data that stays where it is; ``moving``: arguments named later."""
        library, given = computation.library, dict(fixed)
        if computation.scratch().size:
            given[SCRATCH] = computation.scratch()
        indices = [*given, *moving]
        layouts = [
            computation.layout(i)
            if not SCALES <= i < POST_OP
            else library.like(given[i])
            if i in given
            else library.on("INT32" if i & ZERO_POINT else "FP32").dense([1])
            for i in indices
        ]
        memories = [library.owned(self, "memory", library.memory(layout)) for layout in layouts]
        for memory, array in zip(memories, given.values(), strict=False):
            library.set_handle(memory, address_of(array))
        self.computation, self._kept = computation, tuple(given.values())
        self._arguments = (_Argument * len(indices))(
            *[_Argument(*pair) for pair in zip(indices, memories, strict=True)]
        )
        self.moving = tuple(memory.value or 0 for memory in memories[len(given) :])
        """Memory objects of the moving arguments, in order."""
        execute = ctypes.cast(computation.execute, _Pointer).value or 0
        self.words = execute, *computation.handles, len(indices), ctypes.addressof(self._arguments)
        """The function and what it takes: computation, stream, count, address of arguments."""


def onednn_version() -> str:
    return "none" if find_functions() is None else distribution(PACKAGE).version


@cache
def find_onednn() -> OneDnn | None:
    functions = find_functions()
    return None if functions is None else OneDnn(functions)
