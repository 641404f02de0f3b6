"""Kernels of schedule units, and the weights that kernels keep in layouts of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from braid.engine.onednn.library import WEIGHTS, OneDnn, Primitive, Run
from braid.engine.onednn.recipe import Recipe, run_from


@dataclass(frozen=True, slots=True)
class Kernel:
    """One way to run a unit: a function for any thread count, or a recipe of primitives."""

    variant: str  # "onednn", "conv-relu.nhwc", "registry" and so on: unique for a unit
    run: Run | None = None  # looks at the number of threads when it runs
    recipe: Callable[[int], Recipe] | None = None  # for a number of threads
    needs_finite: bool = False  # a NaN or infinity going in may come out as a number
    _recipes: dict[int, Recipe] = field(default_factory=dict, repr=False)
    _runs: dict[int, Run] = field(default_factory=dict, repr=False)

    def recipe_on(self, threads: int) -> Recipe | None:
        """None if the kernel is a function; ``Unsupported`` if oneDNN has no fast kernel for it."""
        if self.recipe is None:
            return None
        if threads not in self._recipes:
            self._recipes[threads] = self.recipe(threads)
        return self._recipes[threads]

    def run_on(self, threads: int) -> Run:
        """Function from the unit's inputs to its outputs, for a team of ``threads`` threads."""
        if self.run is not None:
            return self.run
        if threads not in self._runs:
            recipe = self.recipe_on(threads)
            assert recipe is not None, "a kernel runs, or has a recipe"
            self._runs[threads] = run_from(recipe)
        return self._runs[threads]


class PackedWeights:
    """Reordered weights of one model: each layout of each weight once, shared by all plans."""

    def __init__(self) -> None:
        self._by_layout: dict[str, list[tuple[Primitive, Tensor]]] = {}
        self._by_key: dict[tuple[Any, ...], Tensor] = {}
        self._derived: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}

    def for_primitive(
        self, library: OneDnn, primitive: Primitive, name: str, weight: Tensor
    ) -> Tensor:
        """Constant ``name``, whose tensor is ``weight``, in the layout that ``primitive`` wants."""
        wanted = primitive.layout(WEIGHTS)
        layouts = self._by_layout.setdefault(name, [])
        for reader, packed in layouts:
            if library.same(reader.layout(WEIGHTS), wanted):
                return packed
        packed = library.reorder(weight, wanted)
        layouts.append((primitive, packed))
        return packed

    def once(self, key: tuple[Any, ...], pack: Callable[[], Tensor]) -> Tensor:
        if key not in self._by_key:
            self._by_key[key] = pack()
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
            yield from (packed for _, packed in layouts)
        yield from self._by_key.values()
        yield from (tensor for _, tensor in self._derived.values())
