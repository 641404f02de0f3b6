"""Models of strings: as the exporters of scikit-learn make them, and with ONNX's own operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

TYPES = {
    "BYTES": TensorProto.STRING,
    "FP32": TensorProto.FLOAT,
    "INT64": TensorProto.INT64,
    "BOOL": TensorProto.BOOL,
}

Declared = Mapping[str, tuple[str, Sequence[int | str | None]]]


def string_model(
    nodes: Sequence[NodeProto],
    inputs: Declared,
    outputs: Declared,
    constants: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> onnx.ModelProto:
    """A model of these operators; tensors are declared as (dtype, shape)."""
    given, wanted = (
        [
            helper.make_tensor_value_info(name, TYPES[dtype], shape)
            for name, (dtype, shape) in declared.items()
        ]
        for declared in (inputs, outputs)
    )
    weights = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    return helper.make_model(
        helper.make_graph(nodes, "strings", given, wanted, weights),
        opset_imports=[
            helper.make_opsetid("", 20),
            helper.make_opsetid("ai.onnx.ml", 3),
            helper.make_opsetid("com.microsoft", 1),
        ],
        ir_version=10,
    )


def ml(kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> NodeProto:
    return helper.make_node(kind, inputs, outputs, domain="ai.onnx.ml", **attributes)


def greeting() -> onnx.ModelProto:
    """``y`` is ``x`` between two constants: strings in and out, any rows."""
    nodes = [
        helper.make_node("StringConcat", ["hello", "x"], ["a"]),
        helper.make_node("StringConcat", ["a", "mark"], ["y"]),
    ]
    words = {"hello": np.array(["hello "], object), "mark": np.array(["!"], object)}
    shape: list[int | str] = ["batch", 2]
    return string_model(nodes, {"x": ("BYTES", shape)}, {"y": ("BYTES", shape)}, words)


def labels(rows: str | None = "n") -> onnx.ModelProto:
    """Two columns, text and number, to a label: what a pipeline of scikit-learn looks like.

    skl2onnx gives rows no name.
    """
    nodes = [
        ml("OneHotEncoder", ["colour"], ["hot"], cats_strings=["red", "green", "blue"], zeros=0),
        helper.make_node("Reshape", ["hot", "flat"], ["columns"]),
        helper.make_node("Concat", ["columns", "size"], ["features"], axis=1),
        ml(
            "LinearClassifier",
            ["features"],
            ["label", "scores"],
            classlabels_strings=["apple", "lime", "plum"],
            coefficients=[2.0, 0, 0, 0.1, 0, 2, 0, 0.1, 0, 0, 2, -0.1],
            intercepts=[0.0, 0.1, 0.2],
            multi_class=1,
            post_transform="SOFTMAX",
        ),
    ]
    return string_model(
        nodes,
        {"colour": ("BYTES", [rows, 1]), "size": ("FP32", [rows, 1])},
        {"label": ("BYTES", [rows]), "scores": ("FP32", [rows, 3])},
        {"flat": np.array([-1, 3])},
    )


def word_counts() -> onnx.ModelProto:
    """Counts of words, as CountVectorizer is exported."""
    nodes = [
        helper.make_node(
            "StringNormalizer",
            ["text"],
            ["lower"],
            case_change_action="LOWER",
            locale="C.UTF-8",
        ),
        helper.make_node(
            "Tokenizer",
            ["lower"],
            ["tokens"],
            domain="com.microsoft",
            mark=0,
            mincharnum=1,
            pad_value="#",
            separators=[" "],
        ),
        helper.make_node(
            "TfIdfVectorizer",
            ["tokens"],
            ["counts"],
            mode="TF",
            min_gram_length=1,
            max_gram_length=1,
            max_skip_count=0,
            ngram_counts=[0],
            ngram_indexes=[0, 1, 2],
            pool_strings=["fox", "dog", "lazy"],
        ),
    ]
    return string_model(nodes, {"text": ("BYTES", ["n"])}, {"counts": ("FP32", ["n", 3])})


def numbers_to_names() -> onnx.ModelProto:
    """Strings come out only, and are far longer than what goes in."""
    nodes = [
        ml(
            "LabelEncoder",
            ["x"],
            ["y"],
            keys_int64s=[0, 1, 2],
            values_strings=["zero", "one" * 2000, "two — zwei"],
            default_string="many",
        )
    ]
    return string_model(nodes, {"x": ("INT64", ["n", 3])}, {"y": ("BYTES", ["n", 3])})


def turned() -> onnx.ModelProto:
    """Rows of strings become columns, and numbers go beside them."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0]),
        helper.make_node("Transpose", ["n"], ["m"], perm=[1, 0]),
    ]
    return string_model(
        nodes,
        {"x": ("BYTES", ["rows", 2]), "n": ("FP32", ["rows", 3])},
        {"y": ("BYTES", [2, "rows"]), "m": ("FP32", [3, "rows"])},
    )


def echoes() -> onnx.ModelProto:
    """64 copies of each string."""
    nodes = [helper.make_node("StringConcat", ["x", "nothing"], ["y"])]
    nothing = {"nothing": np.full((1, 64), "", object)}
    return string_model(nodes, {"x": ("BYTES", ["n", 1])}, {"y": ("BYTES", ["n", 64])}, nothing)
