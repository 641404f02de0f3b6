"""A program: a static graph bound to kernels, ready for an executor.

Values live in numbered slots; each unit reads slots and fills slots. Constants fill theirs once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from braid.core.errors import PreconditionFailed
from braid.core.graph import Operator, OpGraph
from braid.core.plan import EnginePart
from braid.engine.ops.dtypes import tensors_of
from braid.engine.program.kernel import (
    Kernel,
    KernelSource,
    PackedWeights,
    Value,
    Values,
    choose,
    makeable,
)
from braid.engine.program.merge import merged_unit
from braid.engine.program.work import estimated_work_us
from braid.engine.runtime.arrays import Array
from braid.engine.runtime.yielding import YieldToRequests, no_pause

Environment = list[Value | None]


@dataclass(frozen=True, slots=True)
class BoundUnit:
    """One schedule unit, ready to run: its kernel makes values of others."""

    kernel: Kernel
    inputs: tuple[int, ...]  # slots
    outputs: tuple[int, ...]  # slots
    work_us: float  # rough latency on one thread, to balance lanes
    held: tuple[tuple[int, int], ...] = ()
    """What holds weights that an engine made of the model's file, by ``id``, and bytes of each."""


OpenedParts = Mapping[EnginePart, BoundUnit]  # parts of a plan in engines, ready to run

NO_PARTS: OpenedParts = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Binding:
    """Everything that the choice and making of kernels depends on."""

    source: KernelSource  # the device's kernels
    threads: int  # of the whole device
    packed: PackedWeights  # shared by the plans of one model; filled as needed
    choices: Mapping[str, str] = field(default_factory=dict)  # signature -> fastest variant

    def kernels(self, unit: Operator, graph: OpGraph, constants: Values) -> Iterable[Kernel]:
        return self.source.variants(unit, graph, constants, self.packed)

    def kernel(self, unit: Operator, graph: OpGraph, constants: Values) -> Kernel:
        wanted = self.choices.get(self.source.signature(unit, graph)) if self.choices else None
        return choose(self.kernels(unit, graph, constants), self.threads, wanted)


@dataclass(frozen=True, slots=True)
class Program:
    """All units of a static graph, by index, and where its values live."""

    graph: OpGraph
    units: tuple[BoundUnit, ...]
    slots: Mapping[str, int]
    template: Environment = field(repr=False)  # constants filled in, everything else None
    needs_finite: bool  # some kernel may turn a NaN or infinity into a number
    binding: Binding = field(repr=False)
    merged: dict[tuple[int, ...], BoundUnit] = field(default_factory=dict, repr=False)
    _tensors: dict[str, Value] = field(default_factory=dict, repr=False)

    def unit(self, units: tuple[int, ...]) -> BoundUnit:
        """Of one or several units that are merged, made at first use; may raise InvalidArtefact."""
        if len(units) == 1:
            return self.units[units[0]]
        if units not in self.merged:
            how, merged = self.binding, merged_unit(self.graph, self.constant, units)
            placed = how.source.place(merged.graph, merged.tensors, PackedWeights())
            merged = replace(merged, tensors=placed)
            whole = how.kernel(merged.unit, merged.graph, placed)
            kernel = how.source.cut(whole, merged, how.threads)
            parts = [self.units[unit] for unit in units]
            outputs = tuple(slot for part in parts for slot in part.outputs)
            work_us = sum(part.work_us for part in parts)
            self.merged[units] = BoundUnit(kernel, parts[0].inputs[:1], outputs, work_us)
        return self.merged[units]

    def variants(self, unit: int) -> list[Kernel]:
        how, operator = self.binding, self.graph.operators[unit]
        kernels = how.kernels(operator, self.graph, self.constants())
        return list(makeable(kernels, how.threads))

    def rivals(self, unit: int) -> list[Kernel]:
        """Variants of a unit among which a measurement of the unit alone can decide.

        A kernel that runs in native segments (engine/cpu/compile.py) has no rival that does not:
        that one would take the lanes beside it out of the native segment, too.
        """
        kernels = self.variants(unit)
        native = kernels[0].recipe is not None
        return [kernel for kernel in kernels if (kernel.recipe is not None) == native]

    def with_variant(self, unit: int, variant: str) -> Program:
        """Shares all values with this one; ``PreconditionFailed`` if there is no such kernel."""
        kernel = next((k for k in self.variants(unit) if k.variant == variant), None)
        if kernel is None:
            name = self.graph.operators[unit].name
            raise PreconditionFailed(f"there is no kernel {variant!r} for {name!r}")
        units = list(self.units)
        units[unit] = replace(units[unit], kernel=kernel)
        return replace(self, units=tuple(units), merged={})

    def kept(self) -> frozenset[int]:
        return frozenset(self.slots[name] for name in self.graph.outputs.values())

    def kinds(self) -> dict[int, str]:
        return {
            self.slots[name]: unit.kind for unit in self.graph.operators for name in unit.outputs
        }

    def environment(self, inputs: Values, outputs: Values | None = None) -> Environment:
        """Slots for one run, with constants and inputs in place.

        ``outputs`` stand in slots that units make: a unit may write there, or replace them.
        """
        env = self.template.copy()
        for name, value in inputs.items():
            env[self.slots[name]] = value
        for name, value in (outputs or {}).items():
            slot = self.slots[self.graph.outputs[name]]
            if env[slot] is None:
                env[slot] = value
        return env

    def constants(self) -> dict[str, Value]:
        return {name: self.template[self.slots[name]] for name in self.graph.constants}

    def tensors(self) -> dict[str, Value]:
        """Constants as torch takes them: always the same, for which it may hold what it made."""
        if not self._tensors:
            self._tensors.update(tensors_of(self.constants()))
        return self._tensors

    def constant(self, name: str) -> Array | None:
        """Content of a constant in the CPU's memory; None if it is none."""
        if name not in self.graph.constants:
            return None
        return self.binding.source.on_host(self.template[self.slots[name]])

    def results(self, env: Environment) -> dict[str, Value]:
        results: dict[str, Value] = {}
        for name, value in self.graph.outputs.items():
            result = env[self.slots[value]]
            assert result is not None, f"output {name!r} was released or never produced"
            results[name] = result
        return results


def bind(
    graph: OpGraph,
    constants: Values,
    binding: Binding,
    pause: YieldToRequests = no_pause,
) -> Program:
    """``pause`` is called after each unit: weights are reordered here."""
    constants = binding.source.place(graph, constants, binding.packed)
    names = [*graph.inputs, *graph.constants]
    names += [out for op in graph.operators for out in op.outputs]
    slots = {name: slot for slot, name in enumerate(names)}
    absent = len(names)  # this slot is always None
    template: Environment = [None] * (absent + 1)
    for name in graph.constants:
        template[slots[name]] = constants[name]
    units = []
    for unit in graph.operators:
        units.append(
            BoundUnit(
                kernel=binding.kernel(unit, graph, constants),
                inputs=tuple(slots[name] if name else absent for name in unit.inputs),
                outputs=tuple(slots[name] for name in unit.outputs),
                work_us=estimated_work_us(unit, graph),
            )
        )
        pause()
    needs_finite = any(unit.kernel.needs_finite for unit in units)
    return Program(graph, tuple(units), slots, template, needs_finite, binding)


def last_readers(program: Program, positions: Sequence[int]) -> dict[int, int]:
    """Slot -> the last position that reads or fills it, without slots that outlive the run."""
    keep = program.kept()
    last: dict[int, int] = {}
    for unit, position in zip(program.units, positions, strict=True):
        for slot in (*unit.inputs, *unit.outputs):
            last[slot] = max(last.get(slot, -1), position)
    produced = {slot for unit in program.units for slot in unit.outputs}
    return {slot: at for slot, at in last.items() if slot in produced and slot not in keep}
