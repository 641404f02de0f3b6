"""Shapes and constants of a unit that is bound to oneDNN, and recipes of one primitive."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from braid.core.graph import Operator, OpGraph
from braid.engine.onednn.library import (
    BIAS,
    DST,
    DTYPES,
    SCRATCH,
    WEIGHTS,
    Computation,
    OneDnn,
    Primitive,
)
from braid.engine.onednn.recipe import Action, Buffer, Place, Recipe
from braid.engine.program.kernel import Kernel, PackedWeights
from braid.engine.runtime.arrays import ARRAY_TYPES, Array, dtype_of, strides_of

VARIANT = "onednn"

WithWeights = tuple[Primitive, str, Array]  # and the name of the weights, before they are packed


@dataclass(frozen=True, slots=True)
class View:
    """Elements of some memory; strides and offset are in elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    is_copy: bool = False  # in other memory than that which it was to show


@dataclass(frozen=True, slots=True)
class UnitBinding:
    """Everything that a unit's recipe is made from."""

    library: OneDnn  # on data of the unit's type
    graph: OpGraph
    constants: Mapping[str, Array]  # that the unit reads
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
        return strides_of(self.shape(value), images=not self.lies_dense(value))

    def constant(self, value: str) -> Array | None:
        array = self.constants.get(value)
        return None if array is None or dtype_of(array) not in DTYPES else array

    def dtype(self, value: str) -> str:
        return self.graph.spec(value).dtype

    def result(self, value: str) -> Buffer:
        return Buffer(self.shape(value), not self.lies_dense(value), dtype=self.dtype(value))

    def buffer(
        self, shape: tuple[int, ...], *, images: bool, seen_as: tuple[int, ...] | None = None
    ) -> Buffer:
        return Buffer(shape, images, seen_as, self.library.dtype)

    def kernel(
        self,
        describe: Callable[[], Primitive | WithWeights],
        arguments: Mapping[int, int],
        result: Buffer,
        *,
        fixed: Mapping[int, Array] = MappingProxyType({}),
        needs_finite: bool = False,
    ) -> Kernel:
        """Kernel of one primitive; the other arguments are those of ``single``."""

        def make(threads: int) -> Recipe:
            with self.library.threads(threads):
                made, given = describe(), dict(fixed)
                if isinstance(made, Primitive):
                    return single(made, given, arguments, result)
                primitive, name, weight = made
                given[WEIGHTS] = self.packed.for_primitive(self.library, primitive, name, weight)
                return single(primitive, given, arguments, result)

        return Kernel(VARIANT, recipe=make, needs_finite=needs_finite)


def number(value: float, dtype: str = "FP32") -> Array:
    return np.array([value], ARRAY_TYPES[dtype])


def constants_of(unit: Operator, binding: UnitBinding) -> tuple[Array, dict[int, Array]] | None:
    """Weights, and the argument that the bias is, if there is one."""
    weight_name, bias_name = (*unit.inputs, "")[1:3]
    weight, bias = binding.constant(weight_name), binding.constant(bias_name)
    if weight is None or (bias_name and bias is None):
        return None
    return weight, {} if bias is None else {BIAS: bias}


def single(
    computation: Computation,
    fixed: Mapping[int, Array],
    arguments: Mapping[int, int],
    result: Buffer,
    scratch: int = 0,
) -> Recipe:
    """``arguments``: argument -> position of the unit's input; ``scratch``: numbers."""
    places = {argument: Place("operand", number) for number, argument in enumerate(arguments)}
    places |= {DST: Place("result", 0), **({SCRATCH: Place("temporary", 0)} if scratch else {})}
    return Recipe(
        (Action(computation, fixed, places),),
        tuple((position, result.images) for position in arguments.values()),
        (result,),
        (Buffer((scratch,), images=False),) if scratch else (),
    )
