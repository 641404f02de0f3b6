"""Merging: units that read one input and do the same to it run as one kernel (IOS, section 4).

    x ─┬─> conv 1x1, 64                x ─> conv 3x3, 64 + 96 ─┬─> channels  0 to 63
       └─> conv 3x3, 96      ──>                               └─> channels 64 to 159

Convolutions with kernels of different sizes merge too: the smaller ones are padded with zeros up to
the largest. That works where the windows share their centre, which takes equal parity of the sizes
and paddings to match. Kernels for images read dense data only, so the merged result is
copied apart, and the copies belong to the price of the stage.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np

from braid.core.attributes import image_window
from braid.core.errors import InvalidArtefact
from braid.core.graph import Literal, Operator, OpGraph
from braid.core.tensor import TensorType
from braid.engine.ops.kinds import EPILOGUE
from braid.engine.program.engines import Constant
from braid.engine.program.kernel import MergedUnit
from braid.engine.runtime.arrays import Array

_FLOATS = frozenset({"FP32", "FP16", "BF16"})


def merge_groups(graph: OpGraph) -> list[list[int]]:
    """Sets of at least two units, by index, any of which can run as one kernel."""
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for index, unit in enumerate(graph.operators):
        key = _merge_key(unit, graph)
        if key is not None:
            alike[key].append(index)
    return [units for units in alike.values() if len(units) > 1]


def merged_unit(graph: OpGraph, constant: Constant, units: Sequence[int]) -> MergedUnit:
    """The unit that gives all outputs of ``units``, which read one input, side by side.

    ``units``: a part of one of ``merge_groups(graph)``, else ``InvalidArtefact``.
    """
    operators = [graph.operators[unit] for unit in units]
    keys = {_merge_key(op, graph) for op in operators}
    if len(keys) != 1 or None in keys:
        names = ", ".join(repr(op.name) for op in operators)
        raise InvalidArtefact(f"the units {names} cannot run as one kernel")
    weights = [weight for op in operators if (weight := constant(op.inputs[1])) is not None]
    biases = [constant((*op.inputs, "")[2]) for op in operators]
    if operators[0].kind == "aten.convolution":
        axis = 1
        unit, weights = _like_convolutions(operators, weights)
    else:
        axis, unit = -1, _merged(operators, operators[0])
    bias = np.concatenate(
        [
            np.zeros(len(weight), weight.dtype) if bias is None else bias
            for weight, bias in zip(weights, biases, strict=True)
        ]
    )
    results = [graph.spec(op.outputs[0]) for op in operators]
    parts = tuple(tuple(map(int, result.shape)) for result in results)
    shape = list(parts[0])
    shape[axis] = sum(part[axis] for part in parts)
    tensors = dict(zip(unit.inputs[1:], (np.concatenate(weights), bias), strict=True))
    dtype = results[0].dtype
    specs = {name: TensorType(dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    enlarged = dataclasses.replace(
        graph,
        constants={**graph.constants, **specs},
        specs={**graph.specs, unit.outputs[0]: TensorType(dtype, tuple(shape))},
    )
    return MergedUnit(unit, enlarged, tensors, axis, parts)


def _merge_key(unit: Operator, graph: OpGraph) -> Hashable | None:
    """Key that is equal for units that can be merged; None for a unit that cannot be."""
    data, weight, *rest = (*unit.inputs, "", "")[:3]
    fixed = all(name in graph.constants for name in (weight, *filter(None, rest)))
    values = [name for name in (data, weight, *rest, *unit.outputs) if name]
    if unit.kind not in ("aten.convolution", "aten.linear") or not fixed:
        return None
    dtypes = {graph.spec(name).dtype for name in values}
    if len(dtypes) > 1 or not dtypes <= _FLOATS or any(0 in graph.spec(n).shape for n in values):
        return None
    epilogue = repr(unit.attributes.get(EPILOGUE))
    if unit.kind == "aten.linear":
        return ("linear", data, epilogue)
    if len(graph.spec(data).shape) != 4 or unit.attributes.get("transposed"):
        return None
    stride, padding, dilation, groups = image_window(unit)
    if groups != 1:
        return None
    kernel = [int(extent) for extent in graph.spec(weight).shape[2:]]
    # Two windows share their centre if 2 * padding - dilation * (kernel - 1) is the same.
    centre = [2 * p - d * (k - 1) for p, d, k in zip(padding, dilation, kernel, strict=True)]
    parity = [k % 2 for k in kernel]
    return ("convolution", data, epilogue, *map(tuple, (stride, dilation, centre, parity)))


def _like_convolutions(
    operators: Sequence[Operator], weights: Sequence[Array]
) -> tuple[Operator, list[Array]]:
    """The merged unit, and weights with zeros around them up to the largest kernel."""
    kernel = [max(w.shape[axis] for w in weights) for axis in (2, 3)]
    first = operators[0]
    stride, padding, dilation, _ = image_window(first)
    widened = []
    for weight in weights:
        around = [(k - e) // 2 for k, e in zip(kernel, weight.shape[2:], strict=True)]
        widened.append(np.pad(weight, [(0, 0), (0, 0), *((edge, edge) for edge in around)]))
    reached = [
        p + d * (k - e) // 2
        for p, d, k, e in zip(padding, dilation, kernel, weights[0].shape[2:], strict=True)
    ]
    window: dict[str, Literal] = {
        "stride": [*stride], "dilation": [*dilation], "padding": [*reached]
    }  # fmt: skip
    merged = _merged(
        operators, dataclasses.replace(first, attributes={**first.attributes, **window})
    )
    return merged, widened


def _merged(operators: Sequence[Operator], like: Operator) -> Operator:
    name = "+".join(op.outputs[0] for op in operators)
    return dataclasses.replace(
        like, name=name, inputs=(like.inputs[0], f"{name}:weight", f"{name}:bias"), outputs=(name,)
    )
