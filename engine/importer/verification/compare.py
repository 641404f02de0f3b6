"""Relative error between the outputs of two runs, and the tolerance.

Templates in double precision measure the rounding error of single precision.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from braid.core.errors import BraidError
from braid.core.graph import Operator, OpGraph
from braid.core.tensor import TensorType
from braid.engine.passes.body import map_operators

TOLERANCE = 1e-4
_INTEGER_MISMATCHES = 0.01  # most elements of an integer output (argmax) that may differ
_TINY = 1e-6  # outputs smaller than this are compared absolutely

Outputs = Mapping[str, Tensor]


class Disagreement(BraidError):
    """Disagreement of two runs that should agree; the message names the output and the error."""


def compare(expected: Outputs, got: Outputs, tolerance: float) -> float:
    """Largest relative error; ``Disagreement`` names the first output over the tolerance."""
    largest = 0.0
    for name, wanted in expected.items():
        actual = got[name]
        if actual.dtype != wanted.dtype or actual.shape != wanted.shape:
            raise Disagreement(
                f"output {name!r} is {actual.dtype} {list(actual.shape)}, "
                f"expected {wanted.dtype} {list(wanted.shape)}"
            )
        error = relative_error(wanted, actual)
        limit = tolerance if wanted.is_floating_point() else _INTEGER_MISMATCHES
        if not error <= limit:
            raise Disagreement(
                f"output {name!r} has a relative error of {error:.3g}, over {limit:g}"
            )
        largest = max(largest, error)
    return largest


def relative_error(expected: Tensor, got: Tensor) -> float:
    """Largest absolute difference over the largest absolute value; infinities must be equal.

    Of integers and booleans: the share of elements that differ.
    """
    if expected.numel() == 0:
        return 0.0
    if not expected.is_floating_point():
        return float((expected != got).double().mean())
    wide, actual = expected.double(), got.double()
    finite = torch.isfinite(wide)
    both_nan = torch.isnan(wide) & torch.isnan(actual)
    same = torch.where(finite, torch.isfinite(actual), (wide == actual) | both_nan)
    if not bool(same.all()):
        return float("inf")
    wide, actual = wide[finite], actual[finite]
    if wide.numel() == 0:
        return 0.0
    return float((wide - actual).abs().max() / wide.abs().max().clamp_min(_TINY))


def furthest(expected: Outputs, got: Outputs) -> float:
    """Largest relative error over all outputs, without a limit."""
    return max(relative_error(expected[name], got[name]) for name in expected)


def in_double(template: OpGraph) -> OpGraph:
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
