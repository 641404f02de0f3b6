"""Element types of a template's values, found without its shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from braid.core.graph import Operator, OpGraph
from braid.core.tensor import DTYPE_BYTES
from braid.engine.passes.body import Weights

_FIXED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys((f"aten.{name}" for name in ("eq", "lt", "le", "gt", "ge")), ("BOOL",)),
    **dict.fromkeys((f"aten.logical_{name}" for name in ("and", "or", "xor", "not")), ("BOOL",)),
    **dict.fromkeys(("aten.isnan", "braid.isinf"), ("BOOL",)),
    **dict.fromkeys(("braid.shape", "braid.size", "braid.nonzero"), ("INT64",)),
    **dict.fromkeys(("braid.argmax", "braid.argmin"), ("INT64",)),
    **dict.fromkeys(("braid.matmul_integer", "braid.convolution_integer"), ("INT32",)),
    "braid.topk": ("", "INT64"),
}
"""Types of the outputs of kinds that do not follow an operand; empty: this output does."""

_FOLLOWED: Mapping[str, int] = {
    **dict.fromkeys(("braid.cast_like", "aten.where", "braid.one_hot", "braid.dequantise"), 1),
    "braid.quantise": 2,
}
"""Operand whose type the outputs have; of other kinds the first of floats."""


def value_types(template: OpGraph, weights: Weights) -> dict[str, str]:
    """Element type of each value, branches included; empty where it is not known."""
    types = {name: spec.dtype for name, spec in {**template.inputs, **template.constants}.items()}
    scalars = {name for name, tensor in weights.items() if tensor.dim() == 0}
    _visit(template.operators, types, scalars)
    return types


def _visit(operators: Iterable[Operator], types: dict[str, str], scalars: set[str]) -> None:
    for operator in operators:
        for branch in operator.branches:
            _visit(branch.operators, types, scalars)
        if operator.branches:
            results: Sequence[str] = [types.get(name, "") for name in operator.branches[0].outputs]
        else:
            results = _results(operator, types, scalars)
        types.update(zip(operator.outputs, results, strict=False))


def _results(operator: Operator, types: Mapping[str, str], scalars: set[str]) -> list[str]:
    named = operator.attributes.get("dtype")
    follows = named if isinstance(named, str) and named in DTYPE_BYTES else ""
    if not follows:
        place = _FOLLOWED.get(operator.kind, -1)
        read = [operator.inputs[place]] if 0 <= place < len(operator.inputs) else operator.inputs
        tensors = [name for name in read if name and name not in scalars]  # as torch promotes
        follows = next((types.get(name, "") for name in (*tensors, *read) if name), "")
    fixed = _FIXED.get(operator.kind, ())
    return [
        (fixed[at] if at < len(fixed) else "") or follows for at in range(len(operator.outputs))
    ]
