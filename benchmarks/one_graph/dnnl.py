"""oneDNN's primitives, and functions of the part in C, over memory of numpy.

What ``braid.engine.onednn.library`` does, without torch: a type is a name of numpy, scratch and
packed weights are arrays, and an address is ``array.ctypes.data``.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from braid.engine.onednn.functions import find_functions

Array = NDArray[Any]
Layout = ctypes.c_void_p

SRC, SRC_1, DST, WEIGHTS, BIAS, SCRATCH, MANY, POST_OP = 1, 2, 17, 33, 41, 80, 1024, 32768
INFERENCE, CONVOLUTION_DIRECT, MAX_POOLING, AVERAGE_ALL = 96, 1, 0x1FF, 0x2FF
_BINARY_ADD, _ARGUMENT, _IMPLEMENTATION, _FP32, _ANY = 0x1FFF0, 255, 8, 3, 1
_FUNCTIONS = {"relu": 0x20, "gelu_tanh": 0x2B, "gelu_erf": 0x31}
ADD = "add"
ALIGNMENT = 64


class Unsupported(Exception):
    """oneDNN has no fast kernel for this."""


class _Argument(ctypes.Structure):
    _fields_ = (("arg", ctypes.c_int), ("memory", ctypes.c_void_p))


def aligned(size_bytes: int) -> Array:
    """Bytes that begin at a cache line."""
    memory = np.empty(size_bytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size_bytes]


def dims(extents: Sequence[int]) -> Any:
    return (ctypes.c_int64 * 12)(*extents)


class Library:
    """oneDNN with one engine for the CPU; data are FP32."""

    def __init__(self) -> None:
        functions = find_functions()
        if functions is None:
            raise Unsupported("there is no oneDNN")
        self._c = functions.by_name
        self._c.dnnl_primitive_desc_query_md.restype = ctypes.c_void_p
        self._c.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
        self.execute = self._c.dnnl_primitive_execute
        self.execute.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
        self.data_of = self._c.dnnl_memory_get_data_handle
        self.set_handle = functions.set_handle
        self.set_handle.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self.engine = self.make("engine_create", 1, ctypes.c_size_t(0))
        self.stream = self.make("stream_create", self.engine, 1)

    def make(self, function: str, *arguments: Any) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        status = getattr(self._c, f"dnnl_{function}")(ctypes.byref(handle), *arguments)
        if status:
            raise Unsupported(f"{function} answered {status}")
        return handle

    def owned(self, owner: object, kind: str, handle: ctypes.c_void_p) -> ctypes.c_void_p:
        destroy = getattr(self._c, f"dnnl_{kind}_destroy")
        weakref.finalize(owner, destroy, ctypes.c_void_p(handle.value)).atexit = False
        return handle

    @contextmanager
    def threads(self, count: int) -> Iterator[None]:
        before = self._c.omp_get_max_threads()
        self._c.omp_set_num_threads(count)
        try:
            yield
        finally:
            self._c.omp_set_num_threads(before)

    def set_threads(self, count: int) -> None:
        self._c.omp_set_num_threads(count)

    def strided(self, shape: Sequence[int], strides: Sequence[int]) -> Layout:
        made = self.make(
            "memory_desc_create_with_strides", len(shape), dims(shape), _FP32, dims(strides)
        )
        return self.owned(made, "memory_desc", made)

    def dense(self, shape: Sequence[int]) -> Layout:
        strides = [1] * len(shape)
        for axis in reversed(range(len(shape) - 1)):
            strides[axis] = strides[axis + 1] * shape[axis + 1]
        return self.strided(shape, strides)

    def images(self, shape: Sequence[int]) -> Layout:
        """Images [n, c, h, w], the channels of a pixel side by side."""
        _, c, h, w = shape
        return self.strided(shape, (h * w * c, 1, w * c, c))

    def any_order(self, shape: Sequence[int]) -> Layout:
        made = self.make("memory_desc_create_with_tag", len(shape), dims(shape), _FP32, _ANY)
        return self.owned(made, "memory_desc", made)

    def attributes(self, post_ops: Sequence[str], summand: Layout | None) -> ctypes.c_void_p:
        handle = self.make("primitive_attr_create")
        self.owned(handle, "primitive_attr", handle)
        self._c.dnnl_primitive_attr_set_scratchpad_mode(handle, 1)
        chain = self.make("post_ops_create")
        self.owned(chain, "post_ops", chain)
        for name in post_ops:
            if name == ADD:
                self._c.dnnl_post_ops_append_binary(chain, _BINARY_ADD, summand)
            else:
                zero = ctypes.c_float(0.0)
                self._c.dnnl_post_ops_append_eltwise(chain, _FUNCTIONS[name], zero, zero)
        self._c.dnnl_primitive_attr_set_post_ops(handle, chain)
        return handle

    def size_bytes(self, layout: Layout) -> int:
        return int(self._c.dnnl_memory_desc_get_size(layout)) if layout.value else 0

    def same(self, left: Layout, right: Layout) -> bool:
        return bool(self._c.dnnl_memory_desc_equal(left, right))

    def query(self, description: ctypes.c_void_p, argument: int) -> Layout:
        return Layout(self._c.dnnl_primitive_desc_query_md(description, _ARGUMENT, argument))

    def implementation(self, description: ctypes.c_void_p) -> str:
        name = ctypes.c_char_p()
        self._c.dnnl_primitive_desc_query(
            description, _IMPLEMENTATION, ctypes.c_int(0), ctypes.byref(name)
        )
        return (name.value or b"").decode()

    def reordered(self, array: Array, source: Layout, target: Layout) -> Array:
        handle = self.make(
            "reorder_primitive_desc_create",
            *(source, self.engine, target, self.engine, self.attributes((), None)),
        )
        packed = aligned(self.size_bytes(target))
        Call(Primitive(self, handle), {SRC: array, DST: packed}, {}).run()
        return packed


@cache
def library() -> Library:
    return Library()


class Primitive:
    """One computation on fixed shapes, made for the number of threads that is set."""

    def __init__(self, lib: Library, description: ctypes.c_void_p) -> None:
        self.lib, self.function = lib, lib.execute
        self.description = lib.owned(self, "primitive_desc", description)
        self.implementation = lib.implementation(description)
        if self.implementation.startswith(("ref", "gemm:ref")):
            raise Unsupported(f"only {self.implementation}")
        made = lib.owned(self, "primitive", lib.make("primitive_create", description))
        self.handles = made.value or 0, lib.stream.value or 0
        self.scratch = aligned(lib.size_bytes(self.layout(SCRATCH)))

    def layout(self, argument: int) -> Layout:
        return self.lib.query(self.description, argument)


class NativeCall:
    """A function of the part in C, which is called as a primitive is."""

    def __init__(self, function: Any, structure: Any, scratch_bytes: int = 0) -> None:
        self.lib, self.function, self.structure = library(), function, structure
        structure.data_of = ctypes.cast(self.lib.data_of, ctypes.c_void_p).value
        self.handles = ctypes.addressof(structure), 0
        self.scratch = aligned(scratch_bytes)
        self._any = self.lib.dense([1])

    def layout(self, argument: int) -> Layout:
        return self._any


@dataclass(frozen=True, slots=True)
class Moving:
    """Data of a value of the graph, some bytes behind its start."""

    value: str
    offset_bytes: int = 0


class Call:
    """One execution; ``moving`` are addressed by the plan, ``fixed`` stay where they are."""

    def __init__(
        self,
        computation: Primitive | NativeCall,
        fixed: Mapping[int, Array],
        moving: Mapping[int, Moving],
    ) -> None:
        lib = computation.lib
        given = dict(fixed)
        if computation.scratch.size:
            given[SCRATCH] = computation.scratch
        indices = [*given, *moving]
        memories = [
            lib.owned(self, "memory", lib.make("memory_create", layout, lib.engine, None))
            for layout in map(computation.layout, indices)
        ]
        for memory, array in zip(memories, given.values(), strict=False):
            lib.set_handle(memory, array.ctypes.data)
        pairs = zip(indices, memories, strict=True)
        self._arguments = (_Argument * len(indices))(*[_Argument(*pair) for pair in pairs])
        self._kept = computation, tuple(given.values())
        handles = [memory.value or 0 for memory in memories[len(given) :]]
        self.moving = tuple(zip(handles, moving.values(), strict=True))
        function = ctypes.cast(computation.function, ctypes.c_void_p).value or 0
        self.words = (
            *(function, *computation.handles, len(indices)),
            ctypes.addressof(self._arguments),
        )

    def run(self) -> None:
        if status := self._kept[0].function(*self.words[1:]):
            raise RuntimeError(f"oneDNN answered {status}")
