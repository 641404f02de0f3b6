"""Native segments: stretches of a plan that run outside the interpreter.

    segments ──engine/cpu/compile.py──> [native segment | step in Python | segment in Python]

A value that a native segment makes has a fixed place in the executor's activation memory
(engine/cpu/memory.py), except outputs of the graph: those lie in memory of the caller, or in new
arrays. engine/cpu/native/lanes.c runs native segments; without it there are none.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from braid.engine.cpu.border import laid
from braid.engine.cpu.lanes import Segment, Slots, Step
from braid.engine.cpu.memory import ActivationMemory, MemoryPlan
from braid.engine.cpu.native.find import find_native
from braid.engine.onednn.library import REFUSED, ComputationCall, OneDnn, find_onednn
from braid.engine.onednn.recipe import Buffer, lies_as
from braid.engine.runtime.arrays import Array, address_of

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
        self, native: NativeSegment, slices: Slices | None, stamps: Array | None = None
    ) -> None:
        """Run compiled lanes; ``stamps`` receives begins of segments, and the end, in nanoseconds.

        Raises ``InvalidRequest`` if a unit cannot use a value.
        """
        if not native.addresses:
            parts = native.code, native.flags, native.bookmark
            native.addresses = tuple(map(address_of, parts))
        code, flags, bookmark = native.addresses
        slice_ns = 0 if slices is None else slices.length_ns
        arrivals = -1 if slices is None or slices.arrivals is None else slices.arrivals
        moments = None if stamps is None else address_of(stamps)
        words = code, flags, native.runs, bookmark, slice_ns, arrivals, moments
        while (status := self._run(*words)) == _CUT:
            assert slices is not None
            try:
                slices.pause()
            except BaseException:
                native.bookmark.fill(0)  # the next run begins at the start
                raise
        if status == REFUSED:
            for call in native.calls:
                call.computation.refuse()
        if status:
            raise RuntimeError(f"oneDNN answered {status} inside a native segment")

    def as_images(self, array: Array) -> Array:
        """In channels_last, by the thread's team: torch takes 60 us for an image of 224 x 224."""
        if lies_as(array, images=True) or not self.interleaves(array):
            return laid(array, images=True)
        images, interleave = self.interleaving(array)
        interleave()
        return images

    def interleaves(self, array: Array) -> bool:
        few = array.shape[1] <= MOST_INTERLEAVED
        return few and array.dtype == np.float32 and array.flags.c_contiguous

    def interleaving(self, array: Array) -> tuple[Array, Callable[[], object]]:
        """Memory for images, and the copy there, by as many threads as the team has now."""
        images = Buffer(array.shape, images=True).fresh()
        n, c, h, w = array.shape
        words = address_of(array), address_of(images), n, c, h * w, self.library.team()
        return images, lambda _kept=(array, images): self._interleave(*words)


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

    code: Array  # int64
    flags: Array  # int64
    bookmark: Array  # int64; where a run that was cut goes on
    addresses: tuple[int, ...] = ()  # of these three, from the first run on
    calls: list[ComputationCall] = field(default_factory=list)
    # memory object, place in the arena: value, bytes behind its start
    fixed: list[tuple[int, int, int]] = field(default_factory=list)
    operands: list[OutsideOperand] = field(default_factory=list)  # values from outside
    # outputs of the graph: slot, buffer, memory objects with bytes behind the start
    results: list[tuple[int, Buffer, list[tuple[int, int]]]] = field(default_factory=list)
    # values that Python reads: slot, value that it lies in, bytes behind its start
    shown: list[tuple[int, int, int, Buffer]] = field(default_factory=list)
    releases: list[int] = field(default_factory=list)  # slots that are not read afterwards
    views: list[tuple[int, Array]] = field(default_factory=list)  # of ``shown``, in the arena
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
                library.set_handle(memory, arena.start + self.memory.offsets[value] + extra)
            native.views = [
                (slot, arena.over(buffer, self.memory.offsets[value] + extra))
                for slot, value, extra, buffer in native.shown
            ]


def run_native(
    native: NativeSegment,
    env: Slots,
    runner: Runner,
    slices: Slices | None = None,
    moments: list[int] | None = None,
) -> None:
    """``moments`` gets the begins of its segments, and the end, in monotonic nanoseconds."""
    set_handle = runner.library.set_handle
    held = []
    for binding in native.operands:
        array = env[binding.slot]
        assert array is not None, "an operand was released or never produced"
        array = runner.as_images(array) if binding.images else laid(array, images=False)
        held.append(array)
        set_handle(binding.memory, address_of(array) + binding.offset_bytes)
    for slot, buffer, memories in native.results:
        target = env[slot]  # the caller's memory for this output, if any
        if target is None or not buffer.is_dense:
            env[slot] = target = buffer.fresh()
        address = address_of(target)
        for memory, extra in memories:
            set_handle(memory, address + extra)
    native.runs += 1
    stamps = None if moments is None else np.zeros(int(native.code[0]) + 1, np.int64)
    runner.run(native, slices, stamps)
    if moments is not None and stamps is not None:
        moments += stamps.tolist()
    for slot, view in native.views:
        env[slot] = view
    for slot in native.releases:
        env[slot] = None
