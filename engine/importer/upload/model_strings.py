"""Strings that are written in an ONNX model: what it compares its inputs with, and answers.

An encoder refuses what is not among its categories, so inputs to verify a model with are drawn
from the strings of the operators that read them, over any number of operators in between.
"""

from collections.abc import Iterator

import onnx
from onnx import AttributeProto, NodeProto, TensorProto

from braid.engine.onnx.structure import all_nodes

MAX_WORDS = 256  # strings of one input that are tried

_KEEPS_STRINGS = frozenset(
    {
        *("ArrayFeatureExtractor", "Compress", "Concat", "Expand", "Flatten", "Gather", "Identity"),
        *("LabelEncoder", "Loop", "If", "Reshape", "Scan", "Slice", "Split", "Squeeze"),
        *("StringConcat", "StringNormalizer", "StringSplit", "Tile", "Tokenizer", "Transpose"),
        *("Unsqueeze", "Where"),
    }
)
_NOT_CONTENT = frozenset(
    {"locale", "case_change_action", "pattern", "tokenexp", "mode", "equation"}
)


def longest_string(model: onnx.ModelProto) -> int:
    """Bytes of the longest string of a tensor or list in the model; 0 without any."""
    lengths = [max(map(len, tensor.string_data), default=0) for tensor in model.graph.initializer]
    for body in (model.graph.node, *(function.node for function in model.functions)):
        lengths += [len(text) for node in all_nodes(body) for text in _texts(node)]
    return max(lengths, default=0)


def words_of(model: onnx.ModelProto) -> dict[str, tuple[str, ...]]:
    """Return the strings that operators compare each input of strings with, by input."""
    strings = {info.name for info in model.graph.input if is_text(info)}
    if not strings:
        return {}
    constants = {
        tensor.name: tensor.string_data for tensor in model.graph.initializer if tensor.string_data
    }
    sources: dict[str, set[str]] = {name: {name} for name in strings}
    compared: dict[str, dict[str, None]] = {name: {} for name in strings}
    for node in model.graph.node:
        read = {name for inside in all_nodes([node]) for name in inside.input}
        origins = set().union(*(sources.get(name, ()) for name in read))
        if not origins:
            continue
        texts = [text for inside in all_nodes([node]) for text in _texts(inside)]
        texts += [text for name in read for text in constants.get(name, ())]
        for text in texts:
            for origin in origins:
                compared[origin].setdefault(text.decode("utf-8", "replace"))
        if node.op_type in _KEEPS_STRINGS:
            for output in node.output:
                sources.setdefault(output, set()).update(origins)
    return {name: tuple(words)[:MAX_WORDS] for name, words in compared.items()}


def is_text(info: onnx.ValueInfoProto) -> bool:
    return bool(info.type.tensor_type.elem_type == TensorProto.STRING)


def _texts(node: NodeProto) -> Iterator[bytes]:
    """Strings of an operator's attributes, but those that say how it works."""
    for attribute in node.attribute:
        if attribute.name in _NOT_CONTENT:
            continue
        if attribute.type == AttributeProto.STRINGS:
            yield from attribute.strings
        elif attribute.type == AttributeProto.STRING:
            yield attribute.s
        elif attribute.type == AttributeProto.TENSOR:
            yield from attribute.t.string_data
