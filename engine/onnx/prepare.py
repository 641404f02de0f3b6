"""Preparation of a model for lowering: functions inlined.

Functions are the model's own and those by which ONNX defines operators that the table lacks.
"""

import onnx
from onnx import checker, defs, helper, inliner, shape_inference

from braid.core.errors import ModelImportError
from braid.engine.onnx.structure import DEFAULT_DOMAINS, all_nodes, check_nesting, check_structure
from braid.engine.runtime.memory import raise_out_of_memory

MAX_EXPANSIONS = 4  # a function of ONNX's own may be defined by others

EXPANDED = (
    *("BlackmanWindow", "CausalConvWithState", "CenterCropPad", "DynamicQuantizeLinear"),
    *("HammingWindow", "HannWindow", "MeanVarianceNormalization"),
    *("NegativeLogLikelihoodLoss", "RotaryEmbedding", "SoftmaxCrossEntropyLoss", "SwiGLU"),
)
"""Operators lowered as the functions that ONNX defines them as."""


def prepare(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model in a form that ``lower`` takes; the given one is not changed.

    Raises ``ModelImportError`` if functions call themselves or grow beyond the budget.
    """
    check_nesting(model.graph)
    if model.functions:
        check_structure(model)
        _check(model)
        model = inliner.inline_local_functions(model)
    return _expanded(model)


def _check(model: onnx.ModelProto) -> None:
    """Raise ``ModelImportError`` if onnx calls a model malformed: its inliner crashes on such."""
    try:
        checker.check_model(_with_output_shapes(model))
    except Exception as error:  # the checker raises whatever its C++ throws
        raise_out_of_memory(error)
        reason = str(error).strip().splitlines()[0][:200]
        raise ModelImportError(f"the model is malformed: {reason}") from error


def _with_output_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Declare a shape, of which any will do, for each output: the checker demands it."""
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
        nodes = all_nodes(model.graph.node)
        used = {node.op_type for node in nodes if node.domain in DEFAULT_DOMAINS}
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
