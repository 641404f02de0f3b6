"""Models outside the lowering table: served by ONNX Runtime as one unit, where that is safe.

    refused by the table ──safe?──> run at likely shapes ──> which extents do outputs follow?
                                                               └──> template of one operator

Safe means: tensors at the boundary, of numbers or strings, operators of ONNX and of ONNX Runtime
itself. Everything against it is said in one message, together with why the table
refused. A model that takes none of what is tried serves untried.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import onnx
import torch
from torch import Tensor

from braid.core.errors import ModelImportError, UnsupportedOperators
from braid.core.graph import Literal, OpGraph
from braid.core.tensor import BYTES, Dim, TensorType
from braid.engine.importer.host.samples import NO_ARRAYS, Arrays
from braid.engine.importer.sandbox.run_limit import trial
from braid.engine.importer.upload.content_shapes import (
    ADDRESSES,
    kinds_by_content,
    outputs_by_content,
)
from braid.engine.importer.upload.model_strings import longest_string
from braid.engine.importer.verification.probe import FoundAxes, Probe
from braid.engine.importer.verification.reference import ReferenceModel
from braid.engine.onnx.builder import UnsupportedUse
from braid.engine.onnx.division import guard_division, inlined
from braid.engine.onnx.structure import all_nodes
from braid.engine.onnx.tensors import input_spec
from braid.engine.ops.whole import named_axes, open_session, whole_graph
from braid.engine.runtime.memory import raise_out_of_memory

DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc")
"""Of ONNX and ONNX Runtime; the last one is of files that it saved after its optimisations."""
_DTYPES = {
    "float": "FP32",
    "double": "FP64",
    "float16": "FP16",
    "bfloat16": "BF16",
    "string": BYTES,
}
_UNNAMED = ("unk__", "?")  # begin converters' names of extents of which they know nothing
_REFUSAL = re.compile(r"while running (\w+) node")


def as_one_unit(
    model: onnx.ModelProto,
    reasons: tuple[str, ...],
    open_reference: Callable[[], ReferenceModel],
    given: Mapping[str, tuple[int, ...]],
    samples: Arrays = NO_ARRAYS,
) -> tuple[OpGraph, dict[str, Tensor], str]:
    """The template of one operator that runs the whole model, and why it was not tried ("").

    ``reasons`` are the lowering table's against the model, ``given`` and ``samples`` are what the
    caller knows to work. Raises ``UnsupportedOperators``, with all reasons, if it is not safe, or
    ONNX Runtime refuses it too, for anything but the content of integers.
    """
    inputs, against = _boundary(model)
    against += _foreign(model)
    if not against:
        model = guard_division(model)
        data = model.SerializeToString()
        try:
            with trial():
                session = open_session(data, 1)
        except Exception as error:  # its exceptions share no base but this
            raise_out_of_memory(error)
            against.append(f"ONNX Runtime, which could serve it whole, refuses it: {_said(error)}")
    if against:
        raise UnsupportedOperators((*against, *reasons))
    declared = {output.name: _declared(output) for output in model.graph.output}
    by_content = outputs_by_content(inlined(model).graph)
    probe = Probe(inputs, open_reference(), samples, declared, by_content)
    axes, untried = _probed(session, probe, given)
    refusing = _REFUSAL.search(untried)
    if untried and not (refusing and refusing[1] in _by_integers(model, inputs)):
        raise UnsupportedOperators((*reasons, untried))
    return *_template(model, axes, data, is_untried=bool(untried)), untried


def _probed(
    session: Any, probe: Probe, given: Mapping[str, tuple[int, ...]]
) -> tuple[FoundAxes, str]:
    """Specs of inputs and outputs, and why no run has shown them ("" if one has)."""
    try:
        return probe.run(given), ""
    except ModelImportError as error:
        inputs, declared = probe.inputs, probe.declared
        names = {dim for spec in inputs.values() for dim in spec.shape}
        dtypes = {output.name: _dtype(output.type) for output in session.get_outputs()}
        outputs = {
            name: TensorType(dtypes[name], named_axes(name, [None] * len(dims), names))
            for name, dims in declared.items()
        }
        return FoundAxes(inputs, outputs, has_ranks=False), str(error)


def _by_integers(model: onnx.ModelProto, inputs: Mapping[str, TensorType]) -> set[str]:
    names = [name for name, spec in inputs.items() if "FP" not in spec.dtype]
    return kinds_by_content(inlined(model).graph, names)


def _declared(output: onnx.ValueInfoProto) -> list[Dim | None]:
    """Extents that the file states of an output; one axis of any extent if it states no rank."""
    tensor = output.type.tensor_type
    if not tensor.HasField("shape"):
        return [None]
    return [
        dim.dim_value
        if dim.HasField("dim_value")
        else None
        if dim.dim_param.startswith(_UNNAMED)
        else dim.dim_param or None
        for dim in tensor.shape.dim
    ]


def _dtype(name: str) -> str:
    short = name.removeprefix("tensor(").removesuffix(")")
    return _DTYPES.get(short, short.upper())


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
    against += [
        f"output {info.name!r} is not a tensor"
        for info in model.graph.output
        if not info.type.HasField("tensor_type")
    ]
    if not inputs and not against:
        against.append("the model has no inputs")
    return inputs, against


def _all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    for body in (model.graph.node, *(function.node for function in model.functions)):
        yield from all_nodes(body)


def _foreign(model: onnx.ModelProto) -> list[str]:
    local = {function.domain for function in model.functions}
    used = {node.domain for node in _all_nodes(model)}
    return [
        f"operators of domain {domain!r}: their code is not part of the file, and none is loaded"
        for domain in sorted(used - local - set(DOMAINS))
    ]


def _origins(model: onnx.ModelProto, inputs: Iterable[str]) -> list[Literal]:
    """For each kind of operator that takes values for addresses, the inputs these come from."""
    sources: dict[str, frozenset[str]] = {name: frozenset({name}) for name in inputs}
    by_operator: dict[str, set[str]] = {}
    none: frozenset[str] = frozenset()
    for node in model.graph.node:
        for place in ADDRESSES.get(node.op_type, ()):
            if place < len(node.input) and node.input[place] in sources:
                by_operator.setdefault(node.op_type, set()).update(sources[node.input[place]])
        read = [name for inside in all_nodes([node]) for name in inside.input]
        from_here = none.union(*(sources.get(name, none) for name in read))
        if from_here:
            sources.update(dict.fromkeys(node.output, from_here))
    return [[kind, *sorted(names)] for kind, names in sorted(by_operator.items())]


def _template(
    model: onnx.ModelProto, axes: FoundAxes, data: bytes, *, is_untried: bool
) -> tuple[OpGraph, dict[str, Tensor]]:
    attributes: dict[str, Literal] = {
        "origins": _origins(model, axes.inputs),
        "longest": longest_string(model),
        "is_untried": is_untried or not axes.has_ranks,
    }
    content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    name = model.graph.name or "model"
    return whole_graph(name, axes.inputs, axes.outputs, content, attributes)
