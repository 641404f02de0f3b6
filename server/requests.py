"""Checks an inference request against the model's inputs and says exactly what is wrong.

    InferRequest ──check_request──> CheckedRequest ──> Batcher

Everything a caller can get wrong about a tensor ends here, as InvalidTensor with the name of the
input, what came and what is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.errors import InvalidTensor
from core.tensor import BATCH, DTYPE_BYTES, TensorSpec
from protos.braid.v1 import inference_pb2 as wire
from server.served import ServedModel, ShapeClass

MAX_REQUEST_ID_BYTES = 128


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A request that the model can run."""

    shape_class: ShapeClass
    rows: int  # 1 for models without a batch
    inputs: Mapping[str, bytes]  # raw bytes, all rows
    outputs: tuple[str, ...]  # wanted, in the model's order


def check_request(model: ServedModel, request: wire.InferRequest) -> CheckedRequest:
    """Validate names, dtypes, shapes, byte counts and wanted outputs.

    Raises:
        InvalidTensor: naming the first input that is wrong, or all that are missing.
    """
    if len(request.request_id.encode()) > MAX_REQUEST_ID_BYTES:
        raise InvalidTensor(f"request_id is longer than {MAX_REQUEST_ID_BYTES} bytes")
    tensors = _by_name(request.inputs, model.inputs)
    # Each look at ``data`` copies the bytes: look once.
    contents = {name: tensors[name].data for name in model.inputs}
    symbols: dict[str, int] = {}
    specs = {
        name: _check_tensor(tensors[name], len(contents[name]), spec, symbols)
        for name, spec in model.inputs.items()
    }
    return CheckedRequest(
        shape_class=ShapeClass(
            tuple((name, model.one_row(spec)) for name, spec in specs.items()),
            tuple((name, contents[name]) for name in model.static_inputs),
        ),
        rows=symbols[BATCH] if model.batched else 1,
        inputs=contents,
        outputs=_wanted(request.outputs, model.outputs),
    )


def _by_name(
    tensors: Sequence[wire.Tensor], wanted: Mapping[str, TensorSpec]
) -> dict[str, wire.Tensor]:
    """Each wanted input exactly once, and nothing else."""
    found: dict[str, wire.Tensor] = {}
    listing = ", ".join(f"{name} {spec}" for name, spec in wanted.items())
    for tensor in tensors:
        if tensor.name in found:
            raise InvalidTensor(f"input {tensor.name!r} is given twice")
        if tensor.name not in wanted:
            raise InvalidTensor(f"the model has no input {tensor.name!r}; its inputs: {listing}")
        found[tensor.name] = tensor
    if missing := [name for name in wanted if name not in found]:
        raise InvalidTensor(f"missing input(s) {', '.join(missing)}; the model takes: {listing}")
    return found


def _check_tensor(
    tensor: wire.Tensor, size_bytes: int, spec: TensorSpec, symbols: dict[str, int]
) -> TensorSpec:
    """One input against its spec; binds the spec's symbols, which inputs may share."""
    name, shape = tensor.name, tuple(tensor.shape)
    if tensor.dtype != spec.dtype:
        raise InvalidTensor(
            f"input {name!r} has dtype {tensor.dtype!r}, the model takes {spec.dtype}"
        )
    if len(shape) != len(spec.shape):
        raise InvalidTensor(
            f"input {name!r} has rank {len(shape)} (shape {list(shape)}), the model takes {spec}"
        )
    for axis, (extent, dim) in enumerate(zip(shape, spec.shape, strict=True)):
        if extent < 1:
            raise InvalidTensor(
                f"input {name!r} has extent {extent} at axis {axis}; extents must be at least 1"
            )
        want = symbols.setdefault(dim, extent) if isinstance(dim, str) else dim
        if extent != want:
            also = f" (the same {dim!r} as in another input)" if isinstance(dim, str) else ""
            raise InvalidTensor(
                f"input {name!r} has shape {list(shape)}, the model takes {spec}: "
                f"axis {axis} must be {want}{also}"
            )
    size = math.prod(shape) * DTYPE_BYTES[spec.dtype]
    if size_bytes != size:
        raise InvalidTensor(
            f"input {name!r} has {size_bytes} bytes of data; {spec.dtype}{list(shape)} takes {size}"
        )
    return TensorSpec(spec.dtype, shape)


def _wanted(names: Sequence[str], outputs: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        return outputs
    for name in names:
        if name not in outputs:
            raise InvalidTensor(
                f"the model has no output {name!r}; its outputs: {', '.join(outputs)}"
            )
    return tuple(name for name in outputs if name in names)
