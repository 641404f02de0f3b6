"""What runs one schedule unit, and the weights that kernels keep in layouts of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from engine.kernels.onednn import WEIGHTS, OneDnn, Primitive, Run


@dataclass(frozen=True, slots=True)
class Kernel:
    """One way to run a unit: ``outputs = kernel.run_on(threads)(*inputs)``."""

    variant: str  # "onednn", "torch" or "registry"
    make: Callable[[int], Run]  # for a number of threads
    needs_finite: bool = False  # a NaN or infinity going in may come out as a number
    _made: dict[int, Run] = field(default_factory=dict, repr=False)

    def run_on(self, threads: int) -> Run:
        """What runs the unit on a thread whose team has ``threads`` threads; made once."""
        if threads not in self._made:
            self._made[threads] = self.make(threads)
        return self._made[threads]


def on_any_threads(run: Run) -> Callable[[int], Run]:
    """For kernels that look at the number of threads when they run."""
    return lambda _: run


class PackedWeights:
    """Reordered weights of one model: each layout of each weight once, shared by all plans."""

    def __init__(self) -> None:
        self._by_layout: dict[str, list[tuple[Primitive, Tensor]]] = {}
        self._by_key: dict[tuple[Any, ...], Tensor] = {}

    def for_primitive(
        self, library: OneDnn, primitive: Primitive, name: str, weight: Tensor
    ) -> Tensor:
        """``weight``, the constant ``name``, as ``primitive`` wants it."""
        wanted = primitive.layout(WEIGHTS)
        known = self._by_layout.setdefault(name, [])
        for reader, packed in known:
            if library.same(reader.layout(WEIGHTS), wanted):
                return packed
        packed = library.reorder(weight, wanted)
        known.append((primitive, packed))
        return packed

    def once(self, key: tuple[Any, ...], pack: Callable[[], Tensor]) -> Tensor:
        """What ``pack`` gave the first time it was asked for under ``key``."""
        if key not in self._by_key:
            self._by_key[key] = pack()
        return self._by_key[key]
