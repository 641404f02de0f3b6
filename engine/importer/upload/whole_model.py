"""Models outside the lowering table: served by ONNX Runtime as one unit, where that is safe.

    refused by the table ──safe?──> run at likely shapes ──> which extents do outputs follow?
                                                               └──> template of one operator

Safe means: tensors at the boundary, of numbers or strings, operators of ONNX and of ONNX Runtime
itself, loops that end, results whose shapes do not depend on content. Everything against it is said
in one message, together with why the table refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

import onnx
import torch
from onnx import inliner
from torch import Tensor

from braid.core.errors import ModelImportError, UnsupportedOperators
from braid.core.graph import Literal, Operator, OpGraph
from braid.core.tensor import TensorType
from braid.engine.importer.sandbox.run_limit import trial
from braid.engine.importer.upload.data_ranges import range_from_data
from braid.engine.importer.upload.loops import loops_against
from braid.engine.importer.upload.model_strings import longest_string
from braid.engine.importer.verification.probe import FoundAxes, Probe
from braid.engine.importer.verification.reference import ReferenceModel
from braid.engine.lowering.builder import UnsupportedUse
from braid.engine.onnx.structure import all_nodes
from braid.engine.onnx.tensors import input_spec
from braid.engine.ops.dtypes import spec_of
from braid.engine.ops.value_ranges import ADDRESSES
from braid.engine.ops.whole import KIND, open_session
from braid.engine.runtime.memory import raise_out_of_memory

DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
_LOOPS = frozenset({"Loop", "Scan", "SequenceMap"})
_MODEL = "model"


def as_one_unit(
    model: onnx.ModelProto,
    reasons: tuple[str, ...],
    open_reference: Callable[[], ReferenceModel],
    given: Mapping[str, tuple[int, ...]],
) -> tuple[OpGraph, dict[str, Tensor]]:
    """The template of one operator that runs the whole model.

    Args:
        model: with all its weights.
        reasons: why the lowering table refused it.
        open_reference: loads the uploaded model.
        given: shapes the caller knows to work, by input.

    Raises:
        UnsupportedOperators: it is not safe, or ONNX Runtime refuses it too; with all reasons.
    """
    inputs, against = _boundary(model)
    against += [*_foreign(model), *_endless(model)]
    if maps := _zip_maps(model):  # without these, ONNX Runtime could serve what the table lacks
        raise UnsupportedOperators((*maps, *against))
    data = model.SerializeToString()
    if not against:
        try:
            with trial():
                open_session(data, 1)
        except Exception as error:  # its exceptions share no base but this
            raise_out_of_memory(error)
            against.append(f"ONNX Runtime, which could serve it whole, refuses it: {_said(error)}")
    if against:
        raise UnsupportedOperators((*reasons, *against))
    try:
        found = Probe(inputs, open_reference()).run(given)
    except ModelImportError as error:
        raise UnsupportedOperators((*reasons, str(error))) from error
    loops = any(node.op_type in _LOOPS for node in _all_nodes(model))
    return _template(model, found, data, loops)


def _said(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    missing = re.search(r"locale with name:([\w.@-]*?)(?::|$)", first)
    if missing is None:
        return first[:300]
    return (
        f"StringNormalizer needs the locale {missing[1]}, which this machine has not; install it "
        "(Debian: locales-all), or give the operator the locale C.UTF-8"
    )


def _boundary(model: onnx.ModelProto) -> tuple[dict[str, TensorType], list[str]]:
    """Specs of the inputs, and reasons against inputs and outputs that are no tensors."""
    given = {proto.name for proto in model.graph.initializer}
    inputs, against = {}, []
    for info in model.graph.input:
        if info.name in given:
            continue
        try:
            inputs[info.name] = input_spec(info, or_strings=True)
        except (UnsupportedUse, ModelImportError) as error:
            against.append(f"input {info.name!r}: {error}")
    zipped = _zipped(model)
    against += [
        f"output {info.name!r} is not a tensor"
        for info in model.graph.output
        if not info.type.HasField("tensor_type") and info.name not in zipped
    ]
    if not inputs and not against:
        against.append("the model has no inputs")
    return inputs, against


def _zip_maps(model: onnx.ModelProto) -> list[str]:
    """Outputs that are dictionaries, as scikit-learn's classifiers are exported by default."""
    zipped = _zipped(model)
    return [
        f"output {info.name!r} is a list of dictionaries (ZipMap), not a tensor; export the "
        "classifier again with convert_sklearn(..., options={'zipmap': False})"
        for info in model.graph.output
        if info.name in zipped
    ]


def _zipped(model: onnx.ModelProto) -> set[str]:
    """Values that ZipMap makes."""
    return {name for node in model.graph.node if node.op_type == "ZipMap" for name in node.output}


def _all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Nodes of the graph, of the local functions and of all their subgraphs."""
    for body in (model.graph.node, *(function.node for function in model.functions)):
        yield from all_nodes(body)


def _foreign(model: onnx.ModelProto) -> list[str]:
    own = {function.domain for function in model.functions}
    used = {node.domain for node in _all_nodes(model)}
    return [
        f"operators of domain {domain!r}: their code is not part of the file, and none is loaded"
        for domain in sorted(used - own - set(DOMAINS))
    ]


def _endless(model: onnx.ModelProto) -> list[str]:
    """Reasons against loops that certainly run too often, also in local functions."""
    if not any(node.op_type == "Loop" for node in _all_nodes(model)):
        return []
    return loops_against(_inlined(model))


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    return inliner.inline_local_functions(model) if model.functions else model


def _origins(model: onnx.ModelProto, inputs: Iterable[str]) -> list[Literal]:
    """For each kind of operator that takes values for addresses, the inputs these come from."""
    sources: dict[str, frozenset[str]] = {name: frozenset({name}) for name in inputs}
    found: dict[str, set[str]] = {}
    none: frozenset[str] = frozenset()
    for node in model.graph.node:
        for place in ADDRESSES.get(node.op_type, ()):
            if place < len(node.input) and node.input[place] in sources:
                found.setdefault(node.op_type, set()).update(sources[node.input[place]])
        read = [name for inside in all_nodes([node]) for name in inside.input]
        from_here = none.union(*(sources.get(name, none) for name in read))
        if from_here:
            sources.update(dict.fromkeys(node.output, from_here))
    return [[kind, *sorted(names)] for kind, names in sorted(found.items())]


def _template(
    model: onnx.ModelProto, found: FoundAxes, data: bytes, loops: bool
) -> tuple[OpGraph, dict[str, Tensor]]:
    constant = _MODEL
    while constant in found.inputs or constant in found.outputs:
        constant += "'"
    names: list[Literal] = list(found.inputs)
    outputs: list[Literal] = list(found.outputs)
    attributes: dict[str, Literal] = {
        "names": names,
        "outputs": outputs,
        "input_shapes": [list(spec.shape) for spec in found.inputs.values()],
        "shapes": [list(spec.shape) for spec in found.outputs.values()],
        "dtypes": [spec.dtype for spec in found.outputs.values()],
        "loops": loops,
        "origins": _origins(model, found.inputs),
        "longest": longest_string(model),
        "range_by": range_from_data(_inlined(model).graph),
    }
    values = tuple(f"{name}:0" for name in found.outputs)
    weights = {constant: torch.frombuffer(bytearray(data), dtype=torch.uint8)}
    operator = Operator(
        "onnxruntime", KIND, (constant, *found.inputs), values, attributes=attributes
    )
    graph = OpGraph(
        name=model.graph.name or "model",
        inputs=found.inputs,
        outputs=dict(zip(found.outputs, values, strict=True)),
        constants={name: spec_of(tensor) for name, tensor in weights.items()},
        operators=(operator,),
    )
    graph.verify()
    return graph, weights
