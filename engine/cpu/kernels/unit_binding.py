"""Shapes and constants of a unit that is bound to oneDNN, and recipes of one primitive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from braid.core.graph import OpGraph
from braid.engine.onednn.library import DST, DTYPES, Array, OneDnn, Primitive
from braid.engine.onednn.recipe import Action, Buffer, Place, Recipe
from braid.engine.ops.dtypes import DTYPE_NAMES, array_of
from braid.engine.program.kernel import Kernel, PackedWeights

VARIANT = "onednn"


@dataclass(frozen=True, slots=True)
class UnitBinding:
    """Everything that a unit's recipe is made from."""

    library: OneDnn  # on data of the unit's type
    graph: OpGraph
    constants: Mapping[str, Tensor]
    packed: PackedWeights
    images: Set[str]  # values of four axes that lie as images where units leave it open

    def shape(self, value: str) -> tuple[int, ...]:
        return tuple(int(extent) for extent in self.graph.spec(value).shape)

    def is_plain(self, value: str, rank: int | None = None) -> bool:
        """Whether a value is of the unit's type, of this rank, and not empty."""
        spec = self.graph.spec(value)
        return (
            spec.dtype == self.library.dtype
            and (rank is None or len(spec.shape) == rank)
            and 0 not in spec.shape
        )

    def lies_dense(self, value: str) -> bool:
        """Whether the elements of a value lie in the order of its shape, not as images."""
        return len(self.graph.spec(value).shape) != 4 or value not in self.images

    def strides(self, value: str) -> tuple[int, ...]:
        layout = torch.contiguous_format if self.lies_dense(value) else torch.channels_last
        return torch.empty(self.shape(value), memory_format=layout, device="meta").stride()

    def constant(self, value: str) -> Tensor | None:
        tensor = self.constants.get(value)
        return None if tensor is None or DTYPE_NAMES.get(tensor.dtype) not in DTYPES else tensor

    def buffer(
        self, shape: tuple[int, ...], *, images: bool, seen_as: tuple[int, ...] | None = None
    ) -> Buffer:
        return Buffer(shape, images, seen_as, self.library.dtype)

    def kernel(
        self,
        describe: Callable[[], Primitive],
        arguments: Mapping[int, int],
        result: Buffer,
        *,
        fixed: Mapping[int, Tensor] = MappingProxyType({}),
        needs_finite: bool = False,
    ) -> Kernel:
        """Kernel of one primitive without weights; the other arguments are those of ``single``."""

        def make(threads: int) -> Recipe:
            with self.library.threads(threads):
                return single(describe(), fixed, arguments, result)

        return Kernel(VARIANT, recipe=make, needs_finite=needs_finite)


def single(
    primitive: Primitive,
    fixed: Mapping[int, Tensor],
    arguments: Mapping[int, int],
    result: Buffer,
    offset_bytes: int = 0,
) -> Recipe:
    """``arguments``: argument -> position of the unit's input; reads from ``offset_bytes`` on."""
    places = {
        argument: Place("operand", number, offset_bytes)
        for number, argument in enumerate(arguments)
    }
    action = Action(primitive, arrays(fixed), {**places, DST: Place("result", 0)})
    operands = tuple((position, result.images) for position in arguments.values())
    return Recipe((action,), operands, (result,))


def arrays(fixed: Mapping[int, Tensor]) -> dict[int, Array]:
    """Constants as an action takes them, in the memory of the tensors."""
    return {argument: array_of(tensor) for argument, tensor in fixed.items()}
