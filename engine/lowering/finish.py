"""The end of a lowering: from a builder that has taken all nodes to a verified template.

Lowering sees every weight in floats, so that it can look at shapes and transpose. At its end, those
of convolutions and linear layers on quantised data become dequantisations of their integers, for
devices that compute on integers:

    x ─> Q ─> DQ ─> conv(x; FP32 weight)        x ─> Q ─> DQ ─> conv(x; DQ(INT8 weight))

All others stay in floats: integers would gain nothing there.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from braid.core.errors import InvalidArtefact, ModelImportError
from braid.core.graph import Operator, OpGraph
from braid.core.tensor import TensorType
from braid.engine.lowering.builder import Builder
from braid.engine.ops.dtypes import spec_of
from braid.engine.ops.families.quantised_unit import DEQUANTISE


def finish(
    builder: Builder, name: str, inputs: Mapping[str, TensorType], outputs: Mapping[str, str]
) -> tuple[OpGraph, dict[str, Tensor]]:
    """Finish a lowering: the template graph, and its constants, taken out of the builder."""
    leave_weights_in_integers(builder)
    read = {value for op in builder.operators for value in op.reads()} | set(outputs.values())
    sources = builder.sources()
    made = {*inputs, *(value for op in builder.operators for value in op.outputs)}
    constants = _separate(builder.constants, read)
    graph = OpGraph(
        name=name,
        inputs=dict(inputs),
        outputs=dict(outputs),
        constants={value: spec_of(tensor) for value, tensor in constants.items()},
        operators=tuple(builder.operators),
        sources={value: names for value, names in sources.items() if value in made},
    )
    try:
        graph.verify()
    except InvalidArtefact as error:
        raise ModelImportError(f"the model does not lower to a valid graph: {error}") from error
    return graph, constants


def _separate(constants: dict[str, Tensor], read: set[str]) -> dict[str, Tensor]:
    """The constants that are read, each dense and with memory of its own: some were views.

    The given mapping is emptied tensor by tensor, so that the peak is one tensor above the sum.
    """
    kept: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name in list(constants):
        tensor = constants.pop(name)
        if name not in read:
            continue
        tensor = tensor.contiguous()
        storage = tensor.untyped_storage()
        if storage.data_ptr() in taken or storage.nbytes() != tensor.nbytes:
            tensor = tensor.clone()
        taken.add(tensor.untyped_storage().data_ptr())
        kept[name] = tensor
    return kept


_KINDS = frozenset({"aten.convolution", "aten.linear"})


def leave_weights_in_integers(builder: Builder) -> None:
    """Rewrite the constants of a builder that has taken all nodes."""
    dequantised = {op.outputs[0] for op in builder.operators if op.kind == DEQUANTISE}
    wanted = [
        op.inputs[1]
        for op in builder.operators
        if op.kind in _KINDS and op.inputs[0] in dequantised and op.inputs[1] in builder.quantised
    ]
    dequantisers = []
    for value in dict.fromkeys(wanted):
        integers = builder.quantised[value]
        del builder.constants[value]
        source = builder.add_constant(f"{value}/integers", integers.values)
        operands = (source, integers.scale, integers.zero)
        attributes = {"axis": integers.axis, "block": 0, "dtype": None}
        dequantisers.append(
            Operator(f"{value}/dequantise", DEQUANTISE, operands, (value,), attributes)
        )
    builder.operators[:0] = dequantisers
