"""Native segments: stretches of a plan that run outside the interpreter.

    segments ──engine/cpu/compile.py──> [native segment | step in Python | segment in Python]

A value that a native segment makes has a fixed place in the executor's activation memory
(engine/cpu/memory.py), except outputs of the graph: those lie in memory of the caller, or in new
tensors. engine/cpu/native/lanes.c runs native segments; without it there are none.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

from braid.engine.cpu.lanes import Segment, Step
from braid.engine.cpu.memory import ActivationMemory, MemoryPlan
from braid.engine.cpu.native.find import find_native
from braid.engine.onednn.library import REFUSED, ComputationCall, OneDnn, find_onednn
from braid.engine.onednn.recipe import Buffer
from braid.engine.ops.dtypes import torch_dtype
from braid.engine.program.kernel import empty_tensor
from braid.engine.program.program import Environment

EXECUTE, WAIT, SIGNAL = 0, 1, 2  # words of the code, as in lanes.c
_CUT = -2

MOST_INTERLEAVED = 16  # channels that ``as_images`` reorders itself; torch is as fast with more


@dataclass(frozen=True, slots=True)
class Slices:
    """Interval of a native run's checks, and the function that each calls; raising ends the run."""

    length_ns: int
    pause: Callable[[], object]
    arrivals: int | None  # the descriptor to look at; None: pause each time


class Runner:
    """The part in C, which runs native segments."""

    def __init__(self, native: ctypes.CDLL, library: OneDnn) -> None:
        self._run = native.braid_run_lanes  # without the interpreter lock
        pointer = ctypes.c_void_p
        number = ctypes.c_int64
        self._run.argtypes = [
            *(pointer, pointer, number),
            *(pointer, number, ctypes.c_int, pointer),
        ]
        self._interleave = native.braid_interleave
        self._interleave.restype = None
        self._interleave.argtypes = [pointer, pointer, number, number, number, ctypes.c_int]
        self._let_lanes_spin = native.braid_let_lanes_spin
        self._let_lanes_spin.restype = None
        self._let_lanes_spin.argtypes = [ctypes.c_int]
        self.library = library

    def let_lanes_spin(self, spins: bool) -> None:
        """Let lanes that wait spin, from now on, or sleep; in all of this process."""
        self._let_lanes_spin(spins)

    def run(
        self, native: NativeSegment, slices: Slices | None, stamps: Tensor | None = None
    ) -> None:
        """Run compiled lanes; ``stamps`` receives begins of segments, and the end, in nanoseconds.

        Raises ``InvalidRequest`` if a unit cannot use a value.
        """
        words = native.code.data_ptr(), native.flags.data_ptr(), native.runs
        slice_ns = 0 if slices is None else slices.length_ns
        arrivals = -1 if slices is None or slices.arrivals is None else slices.arrivals
        moments = None if stamps is None else stamps.data_ptr()
        how = native.bookmark.data_ptr(), slice_ns, arrivals, moments
        while (status := self._run(*words, *how)) == _CUT:
            assert slices is not None
            try:
                slices.pause()
            except BaseException:
                native.bookmark.zero_()  # the next run begins at the start
                raise
        if status == REFUSED:
            for call in native.calls:
                call.computation.refuse()
        if status:
            raise RuntimeError(f"oneDNN answered {status} inside a native segment")

    def as_images(self, tensor: Tensor) -> Tensor:
        """In channels_last, by the thread's team: torch takes 60 us for an image of 224 x 224."""
        if not self.interleaves(tensor):
            return tensor.contiguous(memory_format=torch.channels_last)
        _, c, h, w = tensor.shape
        images = torch.empty_strided(tensor.shape, (h * w * c, 1, w * c, c))
        self.interleave(tensor, images)
        return images

    def interleaves(self, tensor: Tensor) -> bool:
        few = tensor.shape[1] <= MOST_INTERLEAVED
        return few and tensor.dtype == torch.float32 and tensor.is_contiguous()

    def interleave(self, tensor: Tensor, images: Tensor) -> None:
        n, c, h, w = tensor.shape
        threads = torch.get_num_threads()
        self._interleave(tensor.data_ptr(), images.data_ptr(), n, c, h * w, threads)


@cache
def find_runner() -> Runner | None:
    library = find_onednn()
    native = None if library is None else find_native()
    return None if library is None or native is None else Runner(native, library)


@dataclass(slots=True)
class OutsideOperand:
    """A memory object whose address is set before each run of its native segment."""

    memory: int
    slot: int
    images: bool
    offset_bytes: int  # behind the start of the value


@dataclass(slots=True)
class NativeSegment:
    """Lanes as code for the runner, and the values that enter and leave it."""

    code: Tensor  # int64
    flags: Tensor  # int64
    bookmark: Tensor  # int64; where a run that was cut goes on
    calls: list[ComputationCall] = field(default_factory=list)
    # memory object, place in the arena: value, bytes behind its start
    fixed: list[tuple[int, int, int]] = field(default_factory=list)
    operands: list[OutsideOperand] = field(default_factory=list)  # values from outside
    # outputs of the graph: slot, buffer, memory objects with bytes behind the start
    results: list[tuple[int, Buffer, list[tuple[int, int]]]] = field(default_factory=list)
    # values that Python reads: slot, value that it lies in, bytes behind its start
    shown: list[tuple[int, int, int, Buffer]] = field(default_factory=list)
    releases: list[int] = field(default_factory=list)  # slots that are not read afterwards
    views: list[tuple[int, Tensor]] = field(default_factory=list)  # of ``shown``, in the arena
    runs: int = 0


Part = NativeSegment | Step | Segment


@dataclass(slots=True)
class Compiled:
    """Segments of a plan, ready to run on one executor."""

    parts: list[Part]
    memory: MemoryPlan
    sizes: Mapping[int, int]  # value in activation memory -> bytes
    may_be_views: frozenset[int]  # slots that Python fills and that may lie in the arena
    placed_in: ActivationMemory | None = None  # where the addresses are from ...
    generation: int = -1  # ... and when

    def place(self, arena: ActivationMemory, library: OneDnn) -> None:
        """Set the addresses of all memory objects, if activation memory has moved."""
        arena.reserve(self.memory.peak_bytes)
        if self.placed_in is arena and self.generation == arena.generation:
            return
        self.placed_in, self.generation = arena, arena.generation
        for native in self.parts:
            if not isinstance(native, NativeSegment):
                continue
            for memory, value, extra in native.fixed:
                tensor = arena.at(self.memory.offsets[value], self.sizes[value])
                library.set_handle(memory, tensor.data_ptr() + extra)
            native.views = [
                (slot, _placed(buffer, arena, self.memory.offsets[value] + extra))
                for slot, value, extra, buffer in native.shown
            ]


def run_native(
    native: NativeSegment,
    env: Environment,
    runner: Runner,
    slices: Slices | None = None,
    moments: list[int] | None = None,
) -> None:
    """``moments`` gets the begins of its segments, and the end, in monotonic nanoseconds."""
    set_handle = runner.library.set_handle
    held = []
    for binding in native.operands:
        tensor = env[binding.slot]
        assert tensor is not None, "an operand was released or never produced"
        if not binding.images:
            tensor = tensor.contiguous()
        elif not tensor.is_contiguous(memory_format=torch.channels_last):
            tensor = runner.as_images(tensor)
        held.append(tensor)
        set_handle(binding.memory, tensor.data_ptr() + binding.offset_bytes)
    for slot, buffer, memories in native.results:
        target = env[slot]  # the caller's memory for this output, if any
        if target is None or not buffer.is_dense:
            env[slot] = target = _fresh(buffer)
        for memory, extra in memories:
            set_handle(memory, target.data_ptr() + extra)
    native.runs += 1
    stamps = None if moments is None else torch.zeros(int(native.code[0]) + 1, dtype=torch.int64)
    runner.run(native, slices, stamps)
    if moments is not None and stamps is not None:
        moments += stamps.tolist()
    for slot, view in native.views:
        env[slot] = view
    for slot in native.releases:
        env[slot] = None


def _fresh(buffer: Buffer) -> Tensor:
    if buffer.seen_as is not None:
        return empty_tensor(buffer).reshape(buffer.seen_as)
    dtype = torch_dtype(buffer.dtype)
    if not buffer.images:
        return torch.empty(buffer.shape, dtype=dtype)
    _, c, h, w = buffer.shape
    return torch.empty_strided(buffer.shape, (h * w * c, 1, w * c, c), dtype=dtype)


def _placed(buffer: Buffer, arena: ActivationMemory, offset_bytes: int) -> Tensor:
    """A buffer's tensor in activation memory."""
    memory = arena.at(offset_bytes, buffer.size_bytes).view(torch_dtype(buffer.dtype))
    if not buffer.images:
        return memory.view(buffer.seen_as or buffer.shape)
    n, c, h, w = buffer.shape
    images = memory.view(n, h, w, c).permute(0, 3, 1, 2)
    return images.reshape(buffer.seen_as) if buffer.seen_as is not None else images
