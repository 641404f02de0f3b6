"""Templates in double precision, to measure the rounding error of single precision."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from braid.core.graph import Operator, OpGraph
from braid.core.tensor import TensorType
from braid.engine.passes.body import map_operators


def in_double(template: OpGraph) -> OpGraph:
    """Return the template with FP64 in the place of FP32."""

    def change(op: Operator) -> Operator:
        if "FP32" not in op.attributes.values():
            return op
        wide = {key: "FP64" if v == "FP32" else v for key, v in op.attributes.items()}
        return dataclasses.replace(op, attributes=wide)

    inputs = {name: double_spec(spec) for name, spec in template.inputs.items()}
    return dataclasses.replace(map_operators(template, change), inputs=inputs)


def double_spec(spec: TensorType) -> TensorType:
    return TensorType("FP64" if spec.dtype == "FP32" else spec.dtype, spec.shape)


def widened(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.dtype == torch.float32 else tensor
