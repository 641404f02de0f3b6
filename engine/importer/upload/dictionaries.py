"""Outputs that are dictionaries, served as the tensors that these are made of.

scores [rows, classes] ──ZipMap──> a dictionary for each row      as scikit-learn's are exported
scores [rows, classes] ──Identity──> the same, by the same name   as served
"""

from __future__ import annotations

from onnx import ModelProto, NodeProto, TensorProto, helper

_MOST_CLASSES = 10  # named in a remark
_MOST_CHARACTERS = 300


def without_dictionaries(model: ModelProto) -> str:
    """Replace ZipMaps in place by the tensors they read; returns a remark on outputs."""
    outputs = {output.name: output for output in model.graph.output}
    remarks = []
    for node in model.graph.node:
        name = next(iter(node.output), "")
        if (node.domain, node.op_type) != ("ai.onnx.ml", "ZipMap") or name not in outputs:
            continue
        classes = _classes(node)
        node.CopyFrom(helper.make_node("Identity", node.input, node.output))
        outputs[name].type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
        remarks.append(
            f"output {name!r} is a tensor in place of dictionaries (ZipMap); its columns are the "
            f"classes {classes}"
        )
    return "; ".join(remarks)


def _classes(node: NodeProto) -> str:
    texts = [text.decode(errors="replace") for given in node.attribute for text in given.strings]
    keys = texts or [str(number) for given in node.attribute for number in given.ints]
    named = ", ".join(keys[:_MOST_CLASSES])[:_MOST_CHARACTERS]
    return named + (", ..." if len(keys) > _MOST_CLASSES else "")
