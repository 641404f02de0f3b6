"""A plan on lanes, and its runs that find everything bound as the run before left it.

    a run on other memory ──CpuExecutor.run──> the same again ──bind──> BoundRun ──> the next ones

A request comes when others have had the caches, and then Python is slow: the way from a plan's
inputs through its environment to the addresses of its operands, and back, takes 0.1 ms and more
beside a network of 2 ms. One client's requests lie in the same slot of shared memory, one after the
other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import is_

from braid.engine.cpu.lanes import Segment, Slots
from braid.engine.cpu.memory import ActivationMemory
from braid.engine.cpu.segments import Compiled, NativeSegment, Runner, Slices
from braid.engine.onednn.recipe import lies_as
from braid.engine.runtime.arrays import Array, Arrays, address_of


@dataclass(frozen=True, slots=True)
class BoundRun:
    """A plan outside the interpreter, bound to the memory of its inputs and outputs."""

    runner: Runner
    native: NativeSegment
    inputs: Arrays
    outputs: Arrays
    arena: ActivationMemory
    generation: int  # of the arena
    copies: Sequence[Callable[[], object]]  # of inputs, to where they lie in channels_last

    def is_of(self, inputs: Arrays, outputs: Arrays | None) -> bool:
        is_same = inputs is self.inputs and outputs is self.outputs
        return is_same and self.generation == self.arena.generation

    def run(self, slices: Slices | None) -> Arrays:
        for copy in self.copies:
            copy()
        self.native.runs += 1
        self.runner.run(self.native, slices)
        return self.outputs


@dataclass(slots=True, eq=False)
class LanePlan:
    """A plan on lanes, and its compiled form from its first run on."""

    segments: tuple[Segment, ...]  # of ``lanes.lay_out``
    compiled: Compiled | None = None
    latest: tuple[object, object] | None = None  # inputs of its latest run, and its outputs
    bound: BoundRun | None = None  # to the memory of that run

    @property
    def arena_bytes(self) -> int:
        return 0 if self.compiled is None else self.compiled.memory.peak_bytes


def bind_if_repeated(
    plan: LanePlan, env: Slots, runner: Runner, inputs: Arrays, outputs: Arrays
) -> None:
    """Bind a plan whose latest two runs were on the same memory, if Python has no part in them.

    Any other run of the plan unbinds it, since addresses lie in its memory objects.
    """
    memory, latest = (inputs, outputs), plan.latest
    is_repeated = latest is not None and all(map(is_, latest, memory))
    plan.latest = memory
    if not is_repeated or plan.compiled is None or len(plan.compiled.parts) != 1:
        return  # a model without operators has no part
    (native,) = plan.compiled.parts
    if not isinstance(native, NativeSegment) or native.shown:
        return
    written = [env[slot] for slot, *_ in native.results]
    if not all(any(array is buffer for buffer in written) for array in outputs.values()):
        return  # some are copied there
    copies = _bound_images(native, env, runner)
    arena = plan.compiled.placed_in
    if copies is not None and arena is not None:
        plan.bound = BoundRun(runner, native, *memory, arena, arena.generation, copies)


def _bound_images(
    native: NativeSegment, env: Slots, runner: Runner
) -> Sequence[Callable[[], object]] | None:
    """Give images from outside a place of their own; None if torch would have to copy operands."""
    images: dict[int, tuple[Array, Callable[[], object]]] = {}  # by slot, with the copy there
    for operand in native.operands:
        array = env[operand.slot]
        assert array is not None, "values from outside outlive a run"
        if lies_as(array, images=operand.images):
            continue
        if not operand.images or not runner.interleaves(array):
            return None
        if operand.slot not in images:
            images[operand.slot] = runner.interleaving(array)
        address = address_of(images[operand.slot][0]) + operand.offset_bytes
        runner.library.set_handle(operand.memory, address)
    return tuple(copy for _, copy in images.values())
