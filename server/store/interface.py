"""Interface of a model as its configuration declares it to clients of the Open Inference Protocol.

input   declared [3, 224, 224] ──reshaped──> the model's [1, 3, 224, 224]
output  the model's [1, 1000, 1, 1] ──reshaped──> declared [1000]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from braid.core.tensor import BATCH, TensorType

OPEN = -1


@dataclass(frozen=True, slots=True)
class DeclaredTensor:
    """Input or output as a configuration declares it; dims leave out the batch if there is one."""

    name: str
    data_type: str  # of a ModelConfig, e.g. TYPE_FP32; TYPE_INVALID: none is declared
    dims: tuple[int, ...]  # ``OPEN``: any; (): none declared
    own: tuple[int, ...] = ()  # dims of the model's tensor; others than ``dims``: of equal size
    format: str = "FORMAT_NONE"  # as declared, for clients
    labels: tuple[str, ...] = ()  # of classes, by their index


@dataclass(frozen=True, slots=True)
class Interface:
    """Inputs and outputs that a configuration declares, and what else it tells clients."""

    inputs: tuple[DeclaredTensor, ...] = ()
    outputs: tuple[DeclaredTensor, ...] = ()
    has_batch: bool = True  # False: dims are whole shapes, as max_batch_size is 0
    parameters: Mapping[str, str] = field(default_factory=dict)

    def labels(self, output: str) -> tuple[str, ...]:
        return next((t.labels for t in self.outputs if t.name == output), ())


def fit(dims: Sequence[int], extents: Sequence[int | str]) -> bool:
    """Return whether dims may be those of a tensor whose open extents are symbols or ``OPEN``."""
    return len(dims) == len(extents) and all(
        OPEN in (one, other) or isinstance(other, str) or one == other
        for one, other in zip(dims, extents, strict=True)
    )


Reshape = tuple[TensorType, TensorType]
"""Types of a tensor as clients see it, and as the model has it."""


def reshapes(
    tensors: Sequence[DeclaredTensor], specs: Mapping[str, TensorType], has_batch: bool
) -> Mapping[str, Reshape]:
    """Return the reshapes by tensor, without those that do not fit the model's specs."""

    def spec_of(tensor: DeclaredTensor, dims: tuple[int, ...]) -> TensorType:
        shape = (BATCH,) * has_batch + tuple("any" if dim == OPEN else dim for dim in dims)
        return TensorType(specs[tensor.name].dtype, shape)

    return {
        tensor.name: (spec_of(tensor, tensor.dims), spec_of(tensor, tensor.own))
        for tensor in tensors
        if tensor.own != tensor.dims
        and tensor.name in specs
        and fit(tensor.own, specs[tensor.name].shape[has_batch:])
    }


def reshaped(shape: tuple[int, ...], given: TensorType, target: TensorType) -> tuple[int, ...]:
    """Return a shape of one type as the other's, open extents in order; others as they are."""
    if not given.takes(shape):
        return shape
    of_open = iter([n for n, dim in zip(shape, given.shape, strict=True) if isinstance(dim, str)])
    return tuple(next(of_open) if isinstance(dim, str) else dim for dim in target.shape)
