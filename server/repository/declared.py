"""Inputs and outputs that a configuration declares, compared with those of the model."""

from collections.abc import Iterable, Mapping

from braid.core.errors import InvalidRequest
from braid.core.tensor import BATCH, TensorType
from braid.server.store.interface import OPEN, DeclaredTensor, fit

_TYPE_NAMES = {"BOOL": "TYPE_BOOL", "BYTES": "TYPE_STRING"}


def data_type_of(spec: TensorType) -> str:
    return _TYPE_NAMES.get(spec.dtype, f"TYPE_{spec.dtype}")


def open_dims(spec: TensorType, *, without_batch: bool) -> tuple[int, ...]:
    """Return the extents of a tensor; open ones, the batch among them, are ``OPEN``."""
    has_batch = without_batch and spec.shape[:1] == (BATCH,)
    shape = spec.shape[1:] if has_batch else spec.shape
    return tuple(dim if isinstance(dim, int) else OPEN for dim in shape)


def check_declared(
    kind: str,
    declared: Iterable[DeclaredTensor],
    specs: Mapping[str, TensorType],
    *,
    without_batch: bool,
) -> None:
    """Raise InvalidRequest, naming the first declared input or output (``kind``) that differs."""
    for tensor in declared:
        spec = specs.get(tensor.name)
        if spec is None:
            raise InvalidRequest(
                f"{kind} {tensor.name!r} is none of the model's, which are: {', '.join(specs)}"
            )
        if tensor.data_type not in ("TYPE_INVALID", data_type_of(spec)):
            raise InvalidRequest(
                f"{kind} {tensor.name!r} is {data_type_of(spec)} in the model, not "
                f"{tensor.data_type}"
            )
        dims = open_dims(spec, without_batch=without_batch)
        if tensor.dims and not fit(tensor.own, dims):
            left_out = " without the batch (max_batch_size is above 0)" if without_batch else ""
            raise InvalidRequest(
                f"{kind} {tensor.name!r} has dims {list(dims)} in the model{left_out}, not "
                f"{list(tensor.own)}"
            )
