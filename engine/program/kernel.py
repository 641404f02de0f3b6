"""Kernels that a device offers for a unit, the choice among them, and weights in their layouts.

    bind (engine/program/program.py) ──> KernelSource.variants(unit) ──> choose ──> Kernel

    engine/cpu/kernels/candidates.py    oneDNN directly, oneDNN through torch, the registry's
    engine/cuda/kernels/candidates.py   cuDNN, cuBLASLt, TorchInductor, the registry's

A choice is remembered by the unit's signature: it serves every model with such a unit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from braid.core.graph import Operator, OpGraph
from braid.core.json_form import to_json
from braid.engine.onednn.library import WEIGHTS, Array, OneDnn, Primitive, Unsupported
from braid.engine.onednn.recipe import Launch, Recipe, launch_of
from braid.engine.ops.dtypes import tensor_of

Run = Callable[..., Tensor | tuple[Tensor, ...]]


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

    def run_on(self, threads: int) -> Run:
        """Function from the unit's inputs to its outputs, for a team of ``threads`` threads."""
        return _run_from(*self.launch_on(threads)) if self.run is None else self.run

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
        self._derived: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}

    def for_primitive(
        self, library: OneDnn, primitive: Primitive, name: str, weight: Array
    ) -> Array:
        """Constant ``name``, which is ``weight``, in the layout that ``primitive`` wants."""
        wanted = primitive.layout(WEIGHTS)
        layouts = self._by_layout.setdefault(name, [])
        for reader, packed in layouts:
            if library.same(reader.layout(WEIGHTS), wanted):
                return packed
        # By torch: numpy asks for huge pages, and then packing takes 1.7 times as long.
        packed = torch.empty(library.size_bytes(wanted), dtype=torch.uint8).numpy()
        library.reorder(weight, wanted, packed)
        layouts.append((primitive, packed))
        return packed

    def once(self, key: tuple[Any, ...], pack: Callable[[], Array]) -> Array:
        """Return what ``pack`` made, in memory that begins at a cache line."""
        if key not in self._by_key:
            self._by_key[key] = tensor_of(np.ascontiguousarray(pack())).clone().numpy()
        return self._by_key[key]

    def derived(self, key: tuple[Any, ...], source: Tensor, make: Callable[[], Tensor]) -> Tensor:
        """Made once by key and source: small constants of one name differ by shape."""
        entry = self._derived.get(key)
        if entry is None or entry[0] is not source:
            entry = self._derived[key] = (source, make())
        return entry[1]

    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor that is kept, some of them more than once."""
        for layouts in self._by_layout.values():
            yield from (tensor_of(packed) for _, packed in layouts)
        yield from map(tensor_of, self._by_key.values())
        yield from (tensor for _, tensor in self._derived.values())


REGISTRY = "registry"


@dataclass(frozen=True, slots=True)
class MergedUnit:
    """One unit that computes what several units compute from their common input."""

    unit: Operator
    graph: OpGraph  # knows the specs of the merged unit's weight, bias and output
    tensors: Mapping[str, Tensor]  # its weight and bias, by name
    axis: int  # of its output, along which the parts lie side by side
    parts: tuple[tuple[int, ...], ...]  # shape of each unit's output


class KernelSource(Protocol):
    """All kernels that a device has for schedule units."""

    def variants(
        self, unit: Operator, graph: OpGraph, constants: Mapping[str, Tensor], packed: PackedWeights
    ) -> Iterable[Kernel]:
        """The kernel that is usually fastest comes first; ``constants`` are placed (``place``)."""

    def signature(self, unit: Operator, graph: OpGraph) -> str:
        """Key of the unit's choice of kernel: equal where the speed of the kernels is equal."""

    def place(
        self, graph: OpGraph, constants: Mapping[str, Tensor], packed: PackedWeights
    ) -> Mapping[str, Tensor]:
        """The graph's constants in the device's memory, each one once for all plans of a model."""

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


def cut_output(kernel: Kernel, merged: MergedUnit, threads: int) -> Kernel:
    """``kernel`` followed by torch's cuts of its output, on any device; see ``KernelSource.cut``.

    Rows of a part of a matrix lie apart, which matrix products and attention read as they are.
    A part of an image is copied here, where it is measured: convolutions would copy it.
    """
    run = kernel.run_on(threads)
    weight, bias = merged.tensors.values()
    extents = [part[merged.axis] for part in merged.parts]

    def cut(x: Tensor) -> tuple[Tensor, ...]:
        result = run(x, weight, bias)
        whole = result if isinstance(result, Tensor) else result[0]
        parts = torch.split(whole, extents, merged.axis)
        if merged.axis != 1:
            return parts
        last = whole.is_contiguous(memory_format=torch.channels_last)
        layout = torch.channels_last if last else torch.contiguous_format
        return tuple(part.contiguous(memory_format=layout) for part in parts)

    return Kernel(f"{kernel.variant}, merged", cut)


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


def _run_from(recipe: Recipe, launch: Launch) -> Run:
    def run(*inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        operands = [
            inputs[position].contiguous(
                memory_format=torch.channels_last if images else torch.contiguous_format
            )
            for position, images in recipe.operands
        ]
        results = tuple(map(tensor_of, launch([operand.data_ptr() for operand in operands])))
        return results[0] if len(results) == 1 else results

    return run
