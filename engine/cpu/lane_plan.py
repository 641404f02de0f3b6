"""A plan on lanes, and its runs that find everything bound as the run before left it.

    a run on other memory ──CpuExecutor.run──> the same again ──bind──> BoundRun ──> the next ones

A request comes when others have had the caches, and then Python is slow: the way from a plan's
inputs through its environment to the addresses of its operands, and back, takes 0.1 ms and more
beside a network of 2 ms. One client's requests lie in the same slot of shared memory, one after the
other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import TypeAlias

import torch
from torch import Tensor

from braid.engine.cpu.lanes import Segment
from braid.engine.cpu.memory import ActivationMemory
from braid.engine.cpu.segments import Compiled, NativeSegment, Runner, Slices
from braid.engine.program.program import Environment

Tensors: TypeAlias = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class BoundRun:
    """A plan outside the interpreter, bound to the memory of its inputs and outputs."""

    runner: Runner
    native: NativeSegment
    inputs: Tensors
    outputs: Tensors
    arena: ActivationMemory
    generation: int  # of the arena
    images: Sequence[tuple[Tensor, Tensor]]  # inputs, and where they lie in channels_last

    def is_of(self, inputs: Tensors, outputs: Tensors | None) -> bool:
        is_same = inputs is self.inputs and outputs is self.outputs
        return is_same and self.generation == self.arena.generation

    def run(self, slices: Slices | None) -> Tensors:
        for source, images in self.images:
            self.runner.interleave(source, images)
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
    plan: LanePlan, env: Environment, runner: Runner, memory: tuple[Tensors, Tensors]
) -> None:
    """Bind a plan whose latest two runs were on the same ``memory``, if Python has no part in them.

    Any other run of the plan unbinds it, since addresses lie in its memory objects.
    """
    is_repeated = plan.latest is not None and all(map(is_, plan.latest, memory))
    plan.latest = memory
    if not is_repeated or plan.compiled is None or len(plan.compiled.parts) != 1:
        return  # a model without operators has no part
    (native,) = plan.compiled.parts
    if not isinstance(native, NativeSegment) or native.shown:
        return
    written = [env[slot] for slot, *_ in native.results]
    inputs, outputs = memory
    if not all(any(tensor is buffer for buffer in written) for tensor in outputs.values()):
        return  # some are copied there
    images = _bound_images(native, env, runner)
    arena = plan.compiled.placed_in
    if images is not None and arena is not None:
        plan.bound = BoundRun(runner, native, inputs, outputs, arena, arena.generation, images)


def _bound_images(
    native: NativeSegment, env: Environment, runner: Runner
) -> Sequence[tuple[Tensor, Tensor]] | None:
    """Give images from outside a place of their own; None if torch would have to copy operands."""
    images: dict[int, tuple[Tensor, Tensor]] = {}  # by slot
    for operand in native.operands:
        tensor = env[operand.slot]
        assert tensor is not None, "values from outside outlive a run"
        wanted = torch.channels_last if operand.images else torch.contiguous_format
        if tensor.is_contiguous(memory_format=wanted):
            continue
        if not operand.images or not runner.interleaves(tensor):
            return None
        if operand.slot not in images:
            empty = torch.empty_like(tensor, memory_format=torch.channels_last)
            images[operand.slot] = tensor, empty
        address = images[operand.slot][1].data_ptr() + operand.offset_bytes
        runner.library.set_handle(operand.memory, address)
    return tuple(images.values())
