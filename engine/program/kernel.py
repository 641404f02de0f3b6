"""Kernels that a device offers for a unit, the choice among them, and weights in their layouts.

    bind (engine/program/program.py) ──> KernelSource.variants(unit) ──> choose ──> Kernel

    engine/cpu/kernels/candidates.py    oneDNN, Winograd's method, the registry's
    engine/cuda/kernels/candidates.py   cuDNN, cuBLASLt, TorchInductor, the registry's

A choice is remembered by the unit's signature: it serves every model with such a unit.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from braid.core.graph import Operator, OpGraph
from braid.core.json_form import to_json
from braid.engine.onednn.library import WEIGHTS, OneDnn, Primitive, Unsupported
from braid.engine.onednn.recipe import Launch, Recipe, launch_of
from braid.engine.runtime.arrays import Array, aligned

Value: TypeAlias = Any
"""A tensor in a device's memory: an array of numpy on a CPU, one of torch's on a GPU."""

Values: TypeAlias = Mapping[str, Value]

T = TypeVar("T")

Run = Callable[..., Any]  # of values, in the unit's order, to a value or several


@dataclass(frozen=True, slots=True)
class Kernel:
    """One way to run a unit: a function for any thread count, or a recipe of primitives."""

    variant: str  # "onednn", "conv-relu.nhwc", "registry" and so on: unique for a unit
    run: Run | None = None  # looks at the number of threads when it runs
    recipe: Callable[[int], Recipe] | None = None  # for a number of threads
    needs_finite: bool = False  # a NaN or infinity going in may come out as a number
    _recipes: dict[int, Recipe] = field(default_factory=dict, repr=False)
    _launches: dict[int, tuple[Recipe, Launch]] = field(default_factory=dict, repr=False)

    def recipe_on(self, threads: int) -> Recipe | None:
        """None if the kernel is a function; ``Unsupported`` if oneDNN has no fast kernel for it."""
        if self.recipe is None:
            return None
        if threads not in self._recipes:
            self._recipes[threads] = self.recipe(threads)
        return self._recipes[threads]

    @property
    def function(self) -> Run:
        """What runs, of a kernel without a recipe."""
        assert self.run is not None, "a kernel runs, or has a recipe"
        return self.run

    def launch_on(self, threads: int) -> tuple[Recipe, Launch]:
        if threads not in self._launches:
            recipe = self.recipe_on(threads)
            assert recipe is not None, "a kernel runs, or has a recipe"
            self._launches[threads] = recipe, launch_of(recipe)
        return self._launches[threads]


class PackedWeights:
    """Reordered weights of one model: each layout of each weight once, shared by all plans."""

    def __init__(self) -> None:
        self._by_layout: dict[str, list[tuple[Primitive, Array]]] = {}
        self._by_key: dict[tuple[Any, ...], Array] = {}
        self._derived: dict[tuple[Any, ...], tuple[Value, Value]] = {}

    def for_primitive(
        self, library: OneDnn, primitive: Primitive, name: str, weight: Array
    ) -> Array:
        """Constant ``name``, which is ``weight``, in the layout that ``primitive`` wants."""
        wanted = primitive.layout(WEIGHTS)
        layouts = self._by_layout.setdefault(name, [])
        for reader, packed in layouts:
            if library.same(reader.layout(WEIGHTS), wanted):
                return packed
        packed = aligned(library.size_bytes(wanted), in_huge_pages=False)
        library.reorder(weight, wanted, packed)
        layouts.append((primitive, packed))
        return packed

    def once(self, key: tuple[Any, ...], pack: Callable[[], Array]) -> Array:
        """Return what ``pack`` made, in memory that begins at a cache line."""
        if key not in self._by_key:
            array = pack()
            memory = aligned(array.nbytes, in_huge_pages=False)
            self._by_key[key] = memory.view(array.dtype).reshape(array.shape)
            np.copyto(self._by_key[key], array)
        return self._by_key[key]

    def derived(self, key: tuple[Any, ...], source: Value, make: Callable[[], T]) -> T:
        """Made once by key and source: small constants of one name differ by shape."""
        entry = self._derived.get(key)
        if entry is None or entry[0] is not source:
            entry = self._derived[key] = (source, make())
        made: T = entry[1]
        return made

    def values(self) -> Iterator[Value]:
        """Yield all that is kept, some of it more than once."""
        for layouts in self._by_layout.values():
            yield from (packed for _, packed in layouts)
        yield from self._by_key.values()
        yield from (made for _, made in self._derived.values())


REGISTRY = "registry"


@dataclass(frozen=True, slots=True)
class MergedUnit:
    """One unit that computes what several units compute from their common input."""

    unit: Operator
    graph: OpGraph  # knows the specs of the merged unit's weight, bias and output
    tensors: Values  # its weight and bias, by name
    axis: int  # of its output, along which the parts lie side by side
    parts: tuple[tuple[int, ...], ...]  # shape of each unit's output


class KernelSource(Protocol):
    """All kernels that a device has for schedule units."""

    def variants(
        self, unit: Operator, graph: OpGraph, constants: Values, packed: PackedWeights
    ) -> Iterable[Kernel]:
        """The kernel that is usually fastest comes first; ``constants`` are placed (``place``)."""

    def signature(self, unit: Operator, graph: OpGraph) -> str:
        """Key of the unit's choice of kernel: equal where the speed of the kernels is equal."""

    def place(self, graph: OpGraph, constants: Values, packed: PackedWeights) -> Values:
        """The graph's constants in the device's memory, each one once for all plans of a model."""

    def on_host(self, value: Value) -> Array:
        """A value in the CPU's memory."""

    def cut(self, kernel: Kernel, merged: MergedUnit, threads: int) -> Kernel:
        """``kernel``, which runs ``merged.unit``, with its output cut into that of each unit."""


def makeable(kernels: Iterable[Kernel], threads: int) -> Iterator[Kernel]:
    for kernel in kernels:
        try:
            kernel.recipe_on(threads)
        except Unsupported:
            continue
        yield kernel


def choose(kernels: Iterable[Kernel], threads: int, wanted: str | None = None) -> Kernel:
    """The variant ``wanted``, else the first that can be made for ``threads`` threads."""
    if wanted is not None:
        kernels = sorted(kernels, key=lambda kernel: kernel.variant != wanted)
    first = next(makeable(kernels, threads), None)
    assert first is not None, "the registry runs everything"
    return first


def kernel_signature(unit: Operator, graph: OpGraph) -> str:
    """24 hex digits of a hash over all of a unit but names and content of tensors."""
    specs = [to_json(graph.spec(name)) if name else None for name in (*unit.inputs, *unit.outputs)]
    document = [
        unit.kind,
        unit.attributes_of_speed(),
        [n in graph.constants for n in unit.inputs],
        specs,
    ]
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:24]
