"""Kernels for CPU: every way to run a unit.

variants(unit) ──> [oneDNN directly, Winograd's method, the registry's], those that fit
"""

import math
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from itertools import accumulate

import numpy as np

from braid.core.graph import Operator, OpGraph
from braid.core.schedule import USUAL_KERNELS
from braid.core.tensor import DTYPE_BYTES
from braid.engine.cpu.border import on_arrays
from braid.engine.cpu.kernels.elementwise_units import image_values
from braid.engine.cpu.kernels.integers.binding import KINDS as ON_INTEGERS
from braid.engine.cpu.kernels.integers.binding import bind_on_integers
from braid.engine.cpu.kernels.onednn_units import bind_directly
from braid.engine.cpu.kernels.unit_binding import UnitBinding
from braid.engine.cpu.kernels.winograd import bind_winograd
from braid.engine.onednn import floats
from braid.engine.onednn.library import DST, SRC, OneDnn, find_onednn
from braid.engine.onednn.recipe import Action, Place, Recipe
from braid.engine.ops.dtypes import array_of, tensor_of
from braid.engine.ops.kinds import bound
from braid.engine.program.kernel import (
    REGISTRY,
    Kernel,
    KernelSource,
    MergedUnit,
    PackedWeights,
    Values,
    kernel_signature,
)
from braid.engine.program.program import Binding, Program, bind
from braid.engine.runtime.arrays import Array, Arrays
from braid.engine.runtime.yielding import YieldToRequests, no_pause

_ON_BYTES = frozenset({"aten.cat", "braid.max_pool"})  # oneDNN moves 8-bit integers, too


class CpuKernels:
    """The CPU's ``KernelSource``; remembers what it found out about the latest graph."""

    def __init__(self) -> None:
        self._latest: tuple[OpGraph, Set[str]] | None = None

    def variants(
        self, unit: Operator, graph: OpGraph, constants: Arrays, packed: PackedWeights
    ) -> Iterator[Kernel]:
        library = find_onednn()
        if library is not None:
            library = library.on(_data_type(unit, graph))
            read = {name: constants[name] for name in unit.inputs if name in constants}
            binding = UnitBinding(library, graph, read, packed, self._images(graph))
            bind = bind_on_integers if unit.kind in ON_INTEGERS else bind_directly
            direct = bind(unit, binding)
            if direct is not None:
                yield direct
                if (winograd := bind_winograd(unit, binding)) is not None:
                    yield winograd
        fixed = {
            at: tensor_of(constants[name])
            for at, name in enumerate(unit.inputs)
            if name in constants
        }
        yield Kernel(REGISTRY, on_arrays(bound(unit), fixed))

    def _images(self, graph: OpGraph) -> Set[str]:
        if self._latest is None or self._latest[0] is not graph:
            self._latest = graph, image_values(graph)
        return self._latest[1]

    def signature(self, unit: Operator, graph: OpGraph) -> str:
        """Signature of the unit alone: a store keeps choices by device."""
        return kernel_signature(unit, graph)

    def place(self, graph: OpGraph, constants: Values, packed: PackedWeights) -> Arrays:
        """The constants as they are: in memory already."""
        return {name: array_of(value) for name, value in constants.items()}

    def on_host(self, value: Array) -> Array:
        return value

    def cut(self, kernel: Kernel, merged: MergedUnit, threads: int) -> Kernel:
        library = find_onednn()
        if kernel.recipe is None or library is None:
            return _cut_output(kernel, merged)
        return cut_by_copies(library.on(_data_type(merged.unit, merged.graph)), kernel, merged)


CPU_KERNELS: KernelSource = CpuKernels()


def bind_on_cpu(
    graph: OpGraph,
    constants: Values,
    packed: PackedWeights,
    threads: int,
    choices: Mapping[str, str] = USUAL_KERNELS,
    pause: YieldToRequests = no_pause,
) -> Program:
    return bind(graph, constants, Binding(CPU_KERNELS, threads, packed, choices), pause)


def _data_type(unit: Operator, graph: OpGraph) -> str:
    dtype, *others = {graph.spec(name).dtype for name in unit.outputs}
    on_bytes = dtype in ("UINT8", "INT8") and unit.kind in _ON_BYTES
    return dtype if not others and (dtype == "BF16" or on_bytes) else "FP32"


def _cut_output(kernel: Kernel, merged: MergedUnit) -> Kernel:
    """``kernel`` followed by views of its output."""
    run = kernel.function
    ends = [*accumulate(part[merged.axis] for part in merged.parts)][:-1]

    def cut(x: Array) -> tuple[Array, ...]:
        result = run(x, *merged.tensors.values())
        whole = result[0] if isinstance(result, tuple) else result
        return tuple(np.split(whole, ends, merged.axis))

    return Kernel(f"{kernel.variant}, merged", cut)


def cut_by_copies(library: OneDnn, kernel: Kernel, merged: MergedUnit) -> Kernel:
    def make(threads: int) -> Recipe:
        recipe = kernel.recipe_on(threads)
        assert recipe is not None
        with library.threads(threads):
            return _with_copies(library, recipe, merged)

    return Kernel(f"{kernel.variant}, merged", recipe=make, needs_finite=kernel.needs_finite)


def _with_copies(library: OneDnn, recipe: Recipe, merged: MergedUnit) -> Recipe:
    (first,), (result,) = recipe.actions, recipe.results
    whole = len(recipe.temporaries)  # where all parts lie together
    places = {
        argument: Place("temporary", whole) if place.kind == "result" else place
        for argument, place in first.places.items()
    }
    actions, start = [Action(first.computation, first.fixed, places)], 0
    for number, shape in enumerate(merged.parts):
        if result.images:
            copy = floats.slice_of_channels(library, shape, result.shape[1])
        else:
            copy = floats.slice_of_columns(
                library, math.prod(shape[:-1]), shape[-1], result.shape[-1]
            )
        source = Place("temporary", whole, DTYPE_BYTES[result.dtype] * start)
        actions.append(Action(copy, {}, {SRC: source, DST: Place("result", number)}))
        start += shape[merged.axis]
    results = tuple(replace(result, shape=shape) for shape in merged.parts)
    return Recipe(tuple(actions), recipe.operands, results, (*recipe.temporaries, result))
