"""Evaluation of one operator, its failures turned into clear errors."""

from collections.abc import Sequence

import torch
from torch import Tensor

from braid.core.errors import BraidError, InvalidRequest
from braid.core.graph import Operator
from braid.engine.ops.dtypes import spec_of
from braid.engine.ops.kinds import call, op
from braid.engine.ops.shape_rules import shape_of
from braid.engine.runtime.memory import raise_out_of_memory

TENSOR_BYTES = 2**36  # more comes from a broken or hostile model


class TooLarge(InvalidRequest):
    """Refusal of an operator that would make a tensor of more than ``TENSOR_BYTES``."""


_HALVES = frozenset({torch.float16, torch.bfloat16})


def call_in_fp32(
    operator: Operator, operands: Sequence[Tensor | None], dtypes: Sequence[torch.dtype]
) -> tuple[Tensor, ...]:
    """Run an operator; on 16-bit floats it computes in FP32 and rounds once, to ``dtypes``.

    So do the kernels of fused units. And torch's own on 16 bits spread NaN to their neighbours.
    """
    has_halves = any(x is not None and x.dtype in _HALVES for x in operands)
    if not has_halves or op(operator.kind).as_filed:
        return call(operator, operands)
    wide = [x.float() if x is not None and x.dtype in _HALVES else x for x in operands]
    results = call(operator, wide)
    return tuple(
        x.to(dtype) if x.is_floating_point() else x
        for x, dtype in zip(results, dtypes, strict=False)
    )


def meta_like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def attempt(
    operator: Operator, operands: Sequence[Tensor | None], device: str = "meta"
) -> tuple[Tensor, ...]:
    """Run an operator; ``device`` is where the results go if there are no operands.

    Raises ``InvalidRequest``, ``TooLarge`` (an absurdly large tensor) or ``MemoryError``.
    """
    tensors = [tensor for tensor in operands if tensor is not None]
    try:
        shape = shape_of(operator, operands)
        if shape is not None:
            return (_sized(operator, torch.empty(shape, dtype=tensors[0].dtype, device="meta")),)
        if tensors:
            outputs = call(operator, operands)
        else:
            with torch.device(device):
                outputs = call(operator, operands)
    except BraidError:
        raise
    except Exception as error:  # torch raises whatever it likes
        raise_out_of_memory(error)
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
        _sized(operator, output)
    return outputs


def _sized(operator: Operator, output: Tensor) -> Tensor:
    size_bytes = output.numel() * output.element_size()
    if size_bytes > TENSOR_BYTES:
        raise TooLarge(
            f"operator {operator.name!r} ({operator.kind}) would make a tensor of "
            f"{size_bytes} bytes, more than {TENSOR_BYTES}"
        )
    return output
