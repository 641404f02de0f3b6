"""Evaluation of one operator, its failures turned into clear errors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from braid.core.errors import InvalidRequest
from braid.core.graph import Operator
from braid.engine.ops.dtypes import spec_of
from braid.engine.ops.kinds import call

TENSOR_BYTES = 2**36
"""A tensor larger than this comes from a broken or hostile model."""


def meta_like(tensor: Tensor) -> Tensor:
    """Return a meta tensor of the same element type and shape."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def attempt(
    operator: Operator, operands: Sequence[Tensor | None], device: str = "meta"
) -> tuple[Tensor, ...]:
    """Run an operator; ``device`` is where the results go if there are no operands.

    Raises:
        InvalidRequest: it cannot run on these operands, or would make an absurdly large tensor.
    """
    tensors = [tensor for tensor in operands if tensor is not None]
    try:
        if tensors:
            outputs = call(operator, operands)
        else:
            with torch.device(device):
                outputs = call(operator, operands)
    except Exception as error:  # torch raises whatever it likes
        reason = (str(error) or type(error).__name__).splitlines()[0][:300]
        shapes = ", ".join(str(spec_of(tensor)) for tensor in tensors) or "no operands"
        raise InvalidRequest(
            f"operator {operator.name!r} ({operator.kind}) cannot run on {shapes}: {reason}"
        ) from error
    if len(outputs) < len(operator.outputs):
        raise InvalidRequest(
            f"operator {operator.name!r} ({operator.kind}) makes {len(outputs)} results, "
            f"the graph names {len(operator.outputs)}"
        )
    for output in outputs:
        size_bytes = output.numel() * output.element_size()
        if size_bytes > TENSOR_BYTES:
            raise InvalidRequest(
                f"operator {operator.name!r} ({operator.kind}) would make a tensor of "
                f"{size_bytes} bytes, more than {TENSOR_BYTES}"
            )
    return outputs
