"""Preparation of a model for lowering: old operator sets raised, functions inlined.

Functions are the model's own and those by which ONNX defines operators that the table lacks.

The lowering table covers operator sets 7 to the newest by itself, so that conversion, which is
unreliable, is left to models older than that.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import (
    checker,
    defs,
    helper,
    inliner,
    numpy_helper,
    shape_inference,
    version_converter,
)

from braid.core.errors import ModelImportError
from braid.engine.onnx.lowering_table import OLDEST_OPSET
from braid.engine.onnx.structure import DEFAULT_DOMAINS, all_nodes, check_nesting, check_structure
from braid.engine.runtime.memory import raise_out_of_memory

BROADCAST = ("Add", "Sub", "Mul", "Div", "Pow")
EXTENT = 6  # stands for open extents while an operator set is raised
MAX_EXPANSIONS = 4  # a function of ONNX's own may be defined by others

EXPANDED = (
    *("CausalConvWithState", "CenterCropPad", "DynamicQuantizeLinear"),
    *("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss", "SwiGLU"),
)
"""Operators lowered as the functions that ONNX defines them as."""


def prepare(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model in a form that ``lower`` takes; the given one is not changed.

    Raises:
        ModelImportError: functions that call themselves or grow beyond the importer's budget, or an
            operator set too old to convert.
    """
    check_nesting(model.graph)
    if model.functions:
        check_structure(model)
        _check(model)
        model = inliner.inline_local_functions(model)
    versions = [o.version for o in model.opset_import if o.domain in DEFAULT_DOMAINS]
    model = _expanded(model)
    if versions and versions[0] < OLDEST_OPSET:
        if "PRelu" in _used(model.graph):  # the converter forgets how its slope broadcast
            raise ModelImportError(f"PRelu of operator set {versions[0]}; export with a newer one")
        _check(model)
        try:
            model = _raised(model)
        except Exception as error:  # the converter raises whatever its C++ throws
            raise_out_of_memory(error)
            reason = str(error).strip().splitlines()[-1][:200]
            raise ModelImportError(
                f"the model uses ONNX operator set {versions[0]}, which cannot be raised to "
                f"{OLDEST_OPSET} ({reason}); export it again with a newer one"
            ) from error
    return model


def _raised(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model in the oldest operator set of the lowering table.

    The converter wants every shape known: open extents are some number meanwhile.
    """
    known = onnx.ModelProto()
    known.CopyFrom(model)
    for value in known.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_value = dim.dim_value or EXTENT
    for value in known.graph.output:
        value.type.tensor_type.ClearField("shape")
    inferred = _inferred(known)
    types = {value.name: value.type for value in (*inferred.value_info, *inferred.output)}
    types |= {value.name: value.type for value in inferred.input}
    _spell_axes(known.graph, {name: len(one.tensor_type.shape.dim) for name, one in types.items()})
    inferred = _inferred(known)
    known.graph.value_info.extend(inferred.value_info)
    _declare(known.graph.output, inferred.output)
    raised = version_converter.convert_version(known, OLDEST_OPSET)
    _declare(raised.graph.input, model.graph.input)
    _declare(raised.graph.output, model.graph.output)
    del raised.graph.value_info[:]
    return raised


def _inferred(model: onnx.ModelProto) -> onnx.GraphProto:
    """Infer shapes as of the newest of the old operator sets; the others do not say how."""
    newer = onnx.ModelProto()
    newer.CopyFrom(model)
    for opset in newer.opset_import:
        opset.version = max(opset.version, OLDEST_OPSET - 1)
    for node in newer.graph.node:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type == "Reshape" and "shape" in attributes:
            node.input.append(f"{node.output[0]}.shape")
            shape = np.array(attributes["shape"].ints)
            newer.graph.initializer.append(numpy_helper.from_array(shape, node.input[1]))
        elif _has_axis(node):  # the result is like the first operand
            node.op_type = "Identity"
            del node.input[1:]
    return shape_inference.infer_shapes(newer, data_prop=True).graph


def _spell_axes(graph: onnx.GraphProto, ranks: dict[str, int]) -> None:
    """Give second operands that begin at an axis of the first the axes that follow them, too."""
    ranks |= {constant.name: len(constant.dims) for constant in graph.initializer}
    nodes = []
    for node in graph.node:
        if _has_axis(node) and all(name in ranks for name in node.input):
            first, second = (ranks[name] for name in node.input)
            (axis,) = (one.i for one in node.attribute if one.name == "axis")
            if missing := list(range(axis % first + second, first)):
                longer = f"{node.output[0]}.operand"
                nodes.append(helper.make_node("Unsqueeze", node.input[1:], [longer], axes=missing))
                node.input[1] = longer
            kept = [one for one in node.attribute if one.name != "axis"]
            del node.attribute[:]
            node.attribute.extend(kept)
        nodes.append(node)
    spelled = onnx.GraphProto(node=nodes)
    del graph.node[:]
    graph.node.extend(spelled.node)


def _has_axis(node: onnx.NodeProto) -> bool:
    return node.op_type in BROADCAST and any(one.name == "axis" for one in node.attribute)


def _declare(values: Iterable[onnx.ValueInfoProto], as_in: Iterable[onnx.ValueInfoProto]) -> None:
    types = {value.name: value.type for value in as_in}
    for value in values:
        if value.name in types:
            value.type.CopyFrom(types[value.name])


def _check(model: onnx.ModelProto) -> None:
    """Refuse a model that onnx calls malformed: its inliner and converter crash on such.

    Raises:
        ModelImportError: the checker's reason.
    """
    try:
        checker.check_model(_with_output_shapes(model))
    except Exception as error:  # the checker raises whatever its C++ throws
        raise_out_of_memory(error)
        reason = str(error).strip().splitlines()[0][:200]
        raise ModelImportError(f"the model is malformed: {reason}") from error


def _with_output_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with a shape declared for every output, which the checker demands.

    Any shape does: the checker compares none.
    """
    if all(output.type.tensor_type.HasField("shape") for output in model.graph.output):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for output in copy.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.shape.SetInParent()
    return copy


def _expanded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replace operators by the functions that ONNX defines them as."""
    for _ in range(MAX_EXPANSIONS):
        used = _used(model.graph)
        ids = [("", op_type) for op_type in EXPANDED if op_type in used]
        if not ids:
            break
        try:
            _check(model)
            spelt = _with_types(_with_defaults(model, {op_type for _, op_type in ids}))
            model = inliner.inline_selected_functions(spelt, ids, inline_schema_functions=True)
        except Exception as error:  # lowering names what is left
            raise_out_of_memory(error)
            break
    return model


def _with_defaults(model: onnx.ModelProto, op_types: set[str]) -> onnx.ModelProto:
    """Spell out default attributes of some operators: the inliner forgets them."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in all_nodes(copy.graph.node):
        if node.op_type not in op_types or node.domain not in DEFAULT_DOMAINS:
            continue
        given = {attribute.name for attribute in node.attribute}
        for name, attribute in defs.get_schema(node.op_type).attributes.items():
            if name not in given and attribute.default_value.name:
                node.attribute.append(attribute.default_value)
    return copy


def _with_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """Declare the types of values, initialisers too: some functions depend on them."""
    declared = {info.name for info in (*model.graph.input, *model.graph.value_info)}
    model.graph.value_info.extend(
        helper.make_tensor_value_info(proto.name, proto.data_type, proto.dims)
        for proto in model.graph.initializer
        if proto.name not in declared
    )
    try:
        return shape_inference.infer_shapes(model)
    except Exception as error:  # too large, or wrong: the inliner sees what the file declares
        raise_out_of_memory(error)
        return model


def _used(graph: onnx.GraphProto) -> set[str]:
    """Operators of the default domain, subgraphs included."""
    return {node.op_type for node in all_nodes(graph.node) if node.domain in DEFAULT_DOMAINS}
